//! A report as people read it.

use std::fmt::Write as _;

use crate::histogram::Summary;
use crate::{LinkReport, Outage, Report, StageReport};

/// Tables of the report, one below the other.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    sessions(&mut text, report);
    throughput(&mut text, report);
    durations(&mut text, report);
    stages(&mut text, report);
    links(&mut text, report);
    faults(&mut text, &report.faults);
    text
}

fn sessions(text: &mut String, report: &Report) {
    let ends = &report.sessions;
    let _ = writeln!(
        text,
        "{} sessions in {:.1} s (seed {}): {} finished, {} cancelled, {} refused ({} by the queue, {} while down), {} failed\n",
        ends.begun,
        report.seconds,
        report.seed,
        ends.finished,
        ends.cancelled,
        ends.refused,
        ends.refused_queue,
        ends.refused_down,
        ends.failed,
    );
}

fn throughput(text: &mut String, report: &Report) {
    let throughput = &report.throughput;
    let _ = writeln!(
        text,
        "tok/s      whole run  while busy       ideal\nprefill {:>12.1}{:>12.1}{:>12.1}\ndecode  {:>12.1}{:>12.1}{:>12.1}",
        throughput.prefill_tok_s,
        throughput.prefill_tok_s_busy,
        report.ideal.prefill_tok_s,
        throughput.tok_s,
        throughput.decode_tok_s_busy,
        report.ideal.decode_tok_s,
    );
    let ideal = &report.ideal;
    let _ = writeln!(
        text,
        "{:.1} sessions decoded at a time; the ideal is of {} at a depth of {} tokens in groups of {}",
        throughput.decoding_sessions,
        ideal.sessions,
        ideal.depth,
        ideal.sessions.div_ceil(ideal.groups),
    );
    if let Some(planned) = &report.prediction {
        let _ = writeln!(
            text,
            "the planner expects at a depth of {}: prefill {:.1}, decode {:.1} of one session and {:.1} of all, \
             first token after {:.1} ms alone",
            planned.depth,
            planned.prefill,
            planned.decode_one,
            planned.decode_all,
            planned.first_token * 1e3,
        );
    }
}

fn durations(text: &mut String, report: &Report) {
    let _ = writeln!(text, "\nms                  mean        p50        p95        p99        max      count");
    let lines =
        [("first token", &report.first_token_ms), ("between tokens", &report.gap_ms), ("queue", &report.queue_ms)];
    for (name, Summary { count, mean, p50, p95, p99, max }) in lines {
        let _ = writeln!(text, "{name:<14}{mean:>11.2}{p50:>11.2}{p95:>11.2}{p99:>11.2}{max:>11.2}{count:>11}");
    }
    let _ = writeln!(text, "mean and max are exact, percentiles at most 1/64 too high");
}

fn stages(text: &mut String, report: &Report) {
    let _ = writeln!(text, "\nstage     busy  no credit      steps  rows/step    ms/step    ms wait");
    for (index, stage) in report.stages.iter().enumerate() {
        let StageReport { busy, credit_wait, steps, rows_per_step, step_ms, wait_ms } = stage;
        let _ = writeln!(
            text,
            "{index:>5}{:>8.1}%{:>10.1}%{steps:>11}{rows_per_step:>11.1}{step_ms:>11.3}{wait_ms:>11.3}",
            busy * 1e2,
            credit_wait * 1e2,
        );
    }
    let _ = writeln!(text, "all credits were out {:.1}% of the time", report.credits_out * 1e2);
}

fn links(text: &mut String, report: &Report) {
    let busiest = report.links.iter().enumerate().max_by(|one, other| one.1.busy.total_cmp(&other.1.busy));
    if let Some((index, LinkReport { busy, frames, bytes })) = busiest {
        let _ = writeln!(
            text,
            "the busiest link, {index}, sent {:.1}% of the time: {frames} frames, {bytes} bytes",
            busy * 1e2
        );
    }
}

fn faults(text: &mut String, faults: &[Outage]) {
    for outage in faults {
        let Some(at) = outage.at_seconds else {
            let _ = writeln!(text, "fault: {} never: too few sessions came", outage.fault.kind);
            continue;
        };
        let _ = writeln!(
            text,
            "fault at {at:.1} s: {}: {} sessions with {} tokens interrupted, {} lost, {} refused, {:.1} s down, \
             {:.1} s of delay",
            outage.fault.kind,
            outage.sessions_interrupted,
            outage.tokens_again,
            outage.sessions_lost,
            outage.sessions_refused,
            outage.down_seconds,
            outage.delay_seconds,
        );
    }
}
