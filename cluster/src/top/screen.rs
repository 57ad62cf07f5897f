//! What `paceline top` shows: the service as a whole, its stages, and the speed of the last minutes.

use std::collections::VecDeque;

use anyhow::Result;
use paceline_api::StatusReport;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table, Wrap};
use ratatui::{Frame, Terminal};

use crate::status::View;
use crate::status::table::{COLUMNS, rows, summary};

/// Samples that are remembered for the curve: more than any terminal is wide.
const HISTORY: usize = 512;
/// Lines of the curve, with its title.
const CURVE_LINES: u16 = 5;
/// The curve is left out of screens with fewer lines than this.
const CURVE_FROM: u16 = 20;
/// Lines for what is wrong.
const TROUBLE_LINES: u16 = 2;
/// Between the parts of a summary line.
const SEPARATOR: &str = " · ";

/// All that was heard of a service.
pub(crate) struct Screen {
    url: String,
    view: Option<View>,
    /// Why there is nothing newer.
    trouble: Option<String>,
    /// Tokens of answers per second, oldest first.
    speeds: VecDeque<u64>,
}

impl Screen {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), view: None, trouble: None, speeds: VecDeque::with_capacity(HISTORY) }
    }

    /// Takes in a sample, or why there is none.
    pub(crate) fn hear(&mut self, sample: Result<StatusReport>) {
        match sample {
            Ok(report) => {
                let before = self.view.take().map(|view| view.report);
                self.show(View::new(before.as_ref(), report));
            }
            Err(error) => self.trouble = Some(format!("{error:#}; trying again")),
        }
    }

    /// Takes in what is to be shown.
    pub(crate) fn show(&mut self, view: View) {
        if let Some(rates) = &view.rates {
            if self.speeds.len() == HISTORY {
                self.speeds.pop_front();
            }
            self.speeds.push_back(rates.decode_tokens.round() as u64);
        }
        (self.view, self.trouble) = (Some(view), None);
    }

    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let head = self.head(area.width);
        let head_lines = u16::try_from(head.len()).unwrap_or(u16::MAX);
        let trouble_lines = if self.trouble.is_some() { TROUBLE_LINES } else { 0 };
        let curve_lines = if area.height >= CURVE_FROM { CURVE_LINES } else { 0 };
        let lengths = [
            Constraint::Length(head_lines),
            Constraint::Length(trouble_lines),
            Constraint::Min(0),
            Constraint::Length(curve_lines),
            Constraint::Length(1),
        ];
        let [head_area, trouble_area, stages_area, curve_area, foot_area] = Layout::vertical(lengths).areas(area);
        frame.render_widget(Paragraph::new(head), head_area);
        if let Some(trouble) = &self.trouble {
            let text = Paragraph::new(trouble.as_str()).wrap(Wrap { trim: true });
            frame.render_widget(text.fg(Color::Red).bold(), trouble_area);
        }
        self.draw_stages(frame, stages_area);
        self.draw_curve(frame, curve_area);
        frame.render_widget(Paragraph::new("q quits").dim(), foot_area);
    }

    /// The service as a whole, in as many lines as it needs, and one empty line.
    fn head(&self, width: u16) -> Vec<Line<'static>> {
        let mut lines = vec![Line::from(format!("paceline at {}", self.url)).bold()];
        match &self.view {
            Some(view) => {
                let is_serving = view.report.status.ready;
                let [first, rest @ ..] = summary(view);
                let color = if is_serving { Color::Reset } else { Color::Red };
                lines.extend(flow(&first, width).into_iter().map(|line| Line::from(line).fg(color)));
                lines.extend(rest.iter().flat_map(|text| flow(text, width)).map(Line::from));
            }
            None if self.trouble.is_none() => lines.push(Line::from("asking")),
            None => {}
        }
        lines.push(Line::default());
        lines
    }

    /// The stages; old figures are dim while there are no newer ones.
    fn draw_stages(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(view) = &self.view else { return };
        let style = if self.trouble.is_some() { Style::new().dim() } else { Style::new() };
        let stages = view.report.status.stages.len();
        let room = usize::from(area.height.saturating_sub(1));
        let shown = if stages > room { room.saturating_sub(1) } else { stages };
        let mut lines: Vec<Row<'_>> = rows(view).take(shown).map(Row::new).collect();
        if shown < stages {
            lines.push(Row::new([String::new(), format!("{} more", stages - shown)]));
        }
        let widths = [
            Constraint::Length(5),
            Constraint::Fill(2),
            Constraint::Fill(3),
            Constraint::Length(7),
            Constraint::Length(9),
            Constraint::Length(4),
            Constraint::Length(4),
            Constraint::Length(9),
            Constraint::Length(13),
        ];
        let table = Table::new(lines, widths).header(Row::new(COLUMNS).bold()).style(style);
        frame.render_widget(table, area);
    }

    fn draw_curve(&self, frame: &mut Frame<'_>, area: Rect) {
        let width = usize::from(area.width);
        let most = self.speeds.iter().rev().take(width).max().copied().unwrap_or(0);
        let title = format!("answers, tokens/s, second by second; at most {most}");
        let skipped = self.speeds.len().saturating_sub(width);
        let curve =
            Sparkline::default().block(Block::new().title(title)).data(self.speeds.iter().skip(skipped).copied());
        frame.render_widget(curve.fg(Color::Cyan), area);
    }

    /// The screen as text, for where there is no terminal.
    pub(crate) fn text(&self, (width, height): (u16, u16)) -> String {
        let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
        let Ok(frame) = terminal.draw(|frame| self.draw(frame));
        let lines = frame.buffer.content.chunks(usize::from(width));
        let line = |cells: &[Cell]| cells.iter().map(Cell::symbol).collect::<String>();
        lines.map(|cells| line(cells).trim_end().to_owned() + "\n").collect()
    }
}

/// Breaks a line between its parts where it is too long.
fn flow(text: &str, width: u16) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split(SEPARATOR) {
        let length = |text: &str| text.chars().count();
        match lines.last_mut() {
            Some(line) if length(line) + length(SEPARATOR) + length(part) <= usize::from(width) => {
                *line += SEPARATOR;
                *line += part;
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;
    use crate::status::table::tests::view;

    fn screen() -> Screen {
        let mut screen = Screen::new("http://127.0.0.1:8080");
        screen.show(view());
        screen
    }

    #[test]
    fn a_usual_terminal_shows_everything() {
        let expected = "\
paceline at http://127.0.0.1:8080
tiny · qwen35 · epoch 3 · up 2 h 03 min · serving
sessions 2/8, 1 waiting · pages 12/128, 4 promised · steps in flight 3/4
tokens/s: answers 41.5, prompts 512.0 · steps/s 22.0 · waiting for a credit 3%
drafts right -

stage host     device        layers  memory    busy idle sent/s    link
0     attic    cuda:0 (H200) 0..20   3.0 GiB   87%  10%  2.0 MiB   quic 0.25 ms
1     cellar?[ cpu (avx2, 8  20..36  3.0 GiB   25%  75%  0 B       -
";
        let text = screen().text((80, 24));
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("answers, tokens/s, second by second; at most 42"), "{text}");
        assert!(text.ends_with("q quits\n"), "{text}");
        assert_eq!(text.lines().count(), 24);
    }

    #[test]
    fn a_service_that_cannot_be_reached_is_said_and_what_was_known_stays() {
        let mut screen = Screen::new("http://127.0.0.1:1");
        assert!(screen.text((80, 24)).contains("asking"));
        screen.hear(Err(anyhow!("connection refused").context("http://127.0.0.1:1 cannot be reached")));
        let text = screen.text((80, 24));
        assert!(text.contains("cannot be reached: connection refused; trying again"), "{text}");
        assert!(!text.contains("stage"), "{text}");

        screen.hear(Ok(view().report));
        let text = screen.text((80, 24));
        assert!(text.contains("attic") && !text.contains("trying again"), "{text}");
        screen.hear(Err(anyhow!("timed out")));
        let text = screen.text((80, 24));
        assert!(text.contains("attic") && text.contains("timed out; trying again"), "{text}");
        screen.hear(Ok(view().report));
        assert!(!screen.text((80, 24)).contains("timed out"));
    }

    #[test]
    fn rates_come_with_the_second_sample() {
        let mut screen = Screen::new("x");
        let mut report = view().report;
        screen.hear(Ok(report.clone()));
        assert!(screen.text((80, 24)).contains("answers -"));
        report.status.uptime_seconds += 2.0;
        report.status.decode_tokens += 50;
        screen.hear(Ok(report));
        assert!(screen.text((80, 24)).contains("answers 25.0"));
        assert_eq!(screen.speeds, [25]);
    }

    #[test]
    fn more_stages_than_lines_are_counted() {
        let mut view = view();
        let stage = view.report.status.stages[0].clone();
        view.report.status.stages = vec![stage; 40];
        let mut screen = screen();
        screen.show(view);
        let text = screen.text((80, 24));
        assert!(text.contains("30 more"), "{text}");
        assert_eq!(text.matches("attic").count(), 10, "{text}");
    }

    #[test]
    fn no_window_is_too_small() {
        let mut screen = screen();
        for width in [1, 2, 10, 40, 79, 200] {
            for height in [1, 2, 5, 19, 20, 60] {
                screen.text((width, height));
            }
        }
        screen.hear(Err(anyhow!("a long complaint ".repeat(100))));
        screen.text((3, 3));
        let narrow = screen.text((40, 30));
        assert!(narrow.contains("pages 12/128, 4 promised"), "{narrow}");
    }

    #[test]
    fn the_curve_forgets_what_is_too_old() {
        let mut screen = screen();
        for _ in 0..2 * HISTORY {
            screen.show(view());
        }
        assert_eq!(screen.speeds.len(), HISTORY);
        screen.text((80, 24));
    }
}
