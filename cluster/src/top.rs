//! `paceline top`: the figures of `paceline status` on the whole terminal, taken anew each second.
//!
//! A thread asks the service, so that keys are heard while it is slow or gone; [`screen`] draws what was last heard.

mod screen;

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use paceline_api::StatusReport;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::cli::TopArgs;
use crate::status::server::Server;
use crate::status::{SAMPLE, View};
use screen::Screen;

/// How soon a key or a new sample is seen.
const TICK: Duration = Duration::from_millis(100);
/// The screen of `--once`: what every terminal has.
const ONCE_SIZE: (u16, u16) = (80, 24);

/// Shows the service until a key ends it, or once.
pub(crate) fn top(arguments: &TopArgs) -> Result<()> {
    let server = Server::new(&arguments.server)?;
    let mut screen = Screen::new(server.url());
    if arguments.once {
        screen.show(View::take(&server)?);
        let text = screen.text(ONCE_SIZE);
        return std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output");
    }
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    ensure!(is_terminal, "paceline top needs a terminal; use --once, or paceline status");
    let samples = sample(server)?;
    // Gives the terminal back however the rest ends; a panic does so on its own.
    let _restore = Restore;
    let terminal = ratatui::try_init().context("cannot use the terminal")?;
    watch(terminal, screen, &samples)
}

struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Samples as they come, and what their thread stops by.
struct Samples {
    reports: Receiver<Result<StatusReport>>,
    /// Never sent: dropping it ends the thread.
    _stop: SyncSender<()>,
}

/// Asks again and again, on a thread that ends when nobody listens any more.
fn sample(server: Server) -> Result<Samples> {
    let (sender, reports) = sync_channel(1);
    let (stop, stopped) = sync_channel::<()>(1);
    let ask = move || {
        while sender.send(server.status()).is_ok() && stopped.recv_timeout(SAMPLE) == Err(RecvTimeoutError::Timeout) {}
    };
    std::thread::Builder::new().name("paceline-top".to_owned()).spawn(ask).context("the system has no thread left")?;
    Ok(Samples { reports, _stop: stop })
}

fn watch(mut terminal: DefaultTerminal, mut screen: Screen, samples: &Samples) -> Result<()> {
    loop {
        terminal.draw(|frame| screen.draw(frame)).context("cannot draw")?;
        if event::poll(TICK).context("cannot read keys")? && ends(&event::read().context("cannot read keys")?) {
            return Ok(());
        }
        match samples.reports.try_recv() {
            Ok(sample) => screen.hear(sample),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => bail!("the thread that asks the service has ended"),
        }
    }
}

/// Is it a key that ends the program? In raw mode the terminal makes no signal of Ctrl-C.
fn ends(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else { return false };
    match code {
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_keys_end_it_and_others_do_not() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        for (code, modifiers, expected) in [
            (KeyCode::Char('q'), KeyModifiers::NONE, true),
            (KeyCode::Char('Q'), KeyModifiers::SHIFT, true),
            (KeyCode::Esc, KeyModifiers::NONE, true),
            (KeyCode::Char('c'), KeyModifiers::CONTROL, true),
            (KeyCode::Char('c'), KeyModifiers::NONE, false),
            (KeyCode::Enter, KeyModifiers::NONE, false),
        ] {
            assert_eq!(ends(&key(code, modifiers)), expected, "{code:?}");
        }
        assert!(!ends(&Event::Resize(1, 1)));
        let mut released = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        released.kind = KeyEventKind::Release;
        assert!(!ends(&Event::Key(released)));
    }
}
