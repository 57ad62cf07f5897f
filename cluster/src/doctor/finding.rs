//! What is found, and how it is told.

use std::fmt::{Display, Formatter, Result};
use std::io;

use serde::Serialize;

use crate::text::printable;

/// What a check says: a finding, nothing where there is nothing to look at, or that it is not known.
pub(super) type Checked = std::result::Result<Option<Finding>, Unknown>;

/// How good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Grade {
    /// As it should be.
    Good,
    /// Worth knowing, or not known.
    Note,
    /// Serving suffers from it, or is not possible.
    Warning,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) grade: Grade,
    /// What was found, in one sentence with its figures.
    pub(super) found: String,
    /// What to do about it, if anything.
    pub(super) advice: Option<String>,
    /// Nothing can be served like this.
    pub(super) prevents_serving: bool,
}

impl Finding {
    pub(super) fn good(found: impl Into<String>) -> Self {
        Self { grade: Grade::Good, found: found.into(), advice: None, prevents_serving: false }
    }

    pub(super) fn note(found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { grade: Grade::Note, advice: Some(advice.into()), ..Self::good(found) }
    }

    pub(super) fn warning(found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { grade: Grade::Warning, ..Self::note(found, advice) }
    }

    /// A warning of something with which nothing can be served.
    pub(super) fn prevents(found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { prevents_serving: true, ..Self::warning(found, advice) }
    }
}

/// What cannot be known, and why.
#[derive(Debug)]
pub(super) struct Unknown(String);

impl Unknown {
    /// A file that cannot be read; its path from the root on.
    pub(super) fn unreadable(path: &str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self(format!("there is no /{path}")),
            _ => Self(format!("/{path} cannot be read: {error}")),
        }
    }

    /// A file whose text is not what it should be.
    pub(super) fn senseless(path: &str) -> Self {
        Self(format!("what /{path} says makes no sense here"))
    }

    /// Any other reason.
    pub(super) fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<Unknown> for Finding {
    fn from(Unknown(reason): Unknown) -> Self {
        Self { grade: Grade::Note, ..Self::good(format!("not known: {reason}")) }
    }
}

/// A finding and what it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Entry {
    pub(super) area: String,
    #[serde(flatten)]
    pub(super) finding: Finding,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) findings: Vec<Entry>,
    /// Whether anything can be served here.
    pub(super) can_serve: bool,
}

impl Report {
    pub(super) fn new(findings: Vec<Entry>) -> Self {
        let can_serve = findings.iter().all(|entry| !entry.finding.prevents_serving);
        Self { findings, can_serve }
    }

    /// What keeps it from serving at all.
    pub(super) fn reasons_not_to_serve(&self) -> Vec<String> {
        let preventing = self.findings.iter().filter(|entry| entry.finding.prevents_serving);
        preventing.map(|entry| printable(&format!("{}: {}", entry.area, entry.finding.found))).collect()
    }
}

/// `1 core`, `2 cores`.
pub(super) fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl Grade {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Warning => "warning",
        }
    }
}

impl Display for Report {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        let width = self.findings.iter().map(|entry| entry.area.chars().count()).max().unwrap_or(0);
        for Entry { area, finding } in &self.findings {
            let grade = finding.grade.name();
            writeln!(formatter, "{grade:<7}  {:<width$}  {}", printable(area), printable(&finding.found))?;
            if let Some(advice) = &finding.advice {
                writeln!(formatter, "{:<7}  {:<width$}  → {}", "", "", printable(advice))?;
            }
        }
        let count = |grade: Grade| self.findings.iter().filter(|entry| entry.finding.grade == grade).count();
        let (warnings, notes) = (counted(count(Grade::Warning), "warning"), counted(count(Grade::Note), "note"));
        let end =
            if self.can_serve { "nothing keeps this host from serving" } else { "this host cannot serve as it is" };
        writeln!(formatter, "\n{warnings}, {notes}; {end}")
    }
}
