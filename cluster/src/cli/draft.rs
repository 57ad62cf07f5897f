//! Where guesses at what follows come from.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use paceline_core::drafts::{DraftSettings, MOST_DRAFTS};

/// The most guesses that are run with a token, if nothing else is said.
const USUAL_DRAFTS: usize = 15;
/// Guesses of the tail at most: each costs a pass of its draft model, and is right only where those before it are.
const MOST_PROPOSALS: usize = 3;

/// Guesses at the tokens that follow. They change how fast tokens come, and never which.
#[derive(Debug, Clone, Args)]
pub(crate) struct DraftArgs {
    /// Where guesses at the tokens that follow come from. They change how fast tokens come, and never which.
    #[arg(long, default_value = "lookup", value_name = "SOURCE")]
    pub(crate) draft: DraftSource,
    /// The most guesses that are run with a token; how many are is decided by what they bring.
    #[arg(long, default_value_t = USUAL_DRAFTS, value_name = "N")]
    pub(crate) draft_max: usize,
    /// Guesses that are less probable than this are not run, from 0 to 1.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub(crate) draft_p_min: f32,
}

/// Sources of guesses, as flags name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DraftSource {
    /// No guesses.
    None,
    /// What came before in the same conversation: for quotes, edits and repetitions.
    Lookup,
    /// The model's own block for multi-token prediction, and what came before where that promises more.
    Mtp,
}

impl DraftSource {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lookup => "lookup",
            Self::Mtp => "mtp",
        }
    }
}

impl DraftArgs {
    /// Guesses of this source, as many as there are by default.
    pub(crate) const fn of(draft: DraftSource) -> Self {
        Self { draft, draft_max: USUAL_DRAFTS, draft_p_min: 0.0 }
    }

    /// No guesses.
    pub(crate) const NONE: Self = Self { draft: DraftSource::None, draft_max: 0, draft_p_min: 0.0 };

    /// What sessions are told.
    pub(crate) fn settings(&self) -> Result<DraftSettings> {
        let Self { draft, draft_max: most, draft_p_min: least_chance } = *self;
        ensure!(most <= MOST_DRAFTS, "--draft-max is {most}, it must be at most {MOST_DRAFTS}");
        ensure!((0.0..=1.0).contains(&least_chance), "--draft-p-min is {least_chance}, it must be from 0 to 1");
        let lookup = DraftSettings { most, least_chance, lookup: most > 0, proposals: 0 };
        Ok(match draft {
            DraftSource::None => DraftSettings::NONE,
            DraftSource::Lookup => lookup,
            DraftSource::Mtp => DraftSettings { proposals: most.min(MOST_PROPOSALS), ..lookup },
        })
    }
}
