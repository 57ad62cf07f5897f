//! Where guesses at what follows come from.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use paceline_core::drafts::{DraftSettings, MOST_DRAFTS};
use paceline_core::planner::TailDrafter;
use paceline_gguf::KvType;

/// The most guesses that are run with a token, if nothing else is said.
const USUAL_DRAFTS: usize = 15;
/// Guesses of a block for multi-token prediction at most: it was trained for one token, and each further one is a guess
/// from a guess.
const MOST_OF_MTP: usize = 3;

/// Guesses at the tokens that follow. They change how fast tokens come, and never which.
#[derive(Debug, Clone, Args)]
pub(crate) struct DraftArgs {
    /// Where guesses at the tokens that follow come from: none; lookup, what came before in the same conversation; mtp,
    /// the model's own block for multi-token prediction, and lookup where that promises more; or a GGUF file, a smaller
    /// model with the same vocabulary, and lookup. They change how fast tokens come, and never which.
    #[arg(long, default_value = "lookup", value_name = "SOURCE", value_parser = source)]
    pub(crate) draft: DraftSource,
    /// How a draft model's keys and values are stored [default: as the model's].
    #[arg(long, value_name = "TYPE", value_parser = super::kv_type)]
    pub(crate) draft_kv_type: Option<KvType>,
    /// The most guesses that are run with a token; how many are is decided by what they bring.
    #[arg(long, default_value_t = USUAL_DRAFTS, value_name = "N")]
    pub(crate) draft_max: usize,
    /// Guesses that are less probable than this are not run, from 0 to 1.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub(crate) draft_p_min: f32,
}

/// Sources of guesses, as flags name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DraftSource {
    /// No guesses.
    None,
    /// What came before in the same conversation: for quotes, edits and repetitions.
    Lookup,
    /// The model's own block for multi-token prediction, and what came before where that promises more.
    Mtp,
    /// A model in a file of its own, and what came before where that promises more.
    File(PathBuf),
}

impl DraftSource {
    /// As it is told; of a file without its folder.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Lookup => "lookup".to_owned(),
            Self::Mtp => "mtp".to_owned(),
            Self::File(path) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        }
    }
}

/// A path is what ends as model files do, or has a folder in it.
fn source(text: &str) -> Result<DraftSource, String> {
    match text {
        "none" => Ok(DraftSource::None),
        "lookup" => Ok(DraftSource::Lookup),
        "mtp" => Ok(DraftSource::Mtp),
        _ if text.ends_with(".gguf") || text.contains('/') => Ok(DraftSource::File(text.into())),
        _ => Err("possible values: none, lookup, mtp, or the path of a GGUF file".to_owned()),
    }
}

impl DraftArgs {
    /// Guesses of this source, as many as there are by default.
    pub(crate) const fn of(draft: DraftSource) -> Self {
        Self { draft, draft_kv_type: None, draft_max: USUAL_DRAFTS, draft_p_min: 0.0 }
    }

    /// No guesses.
    pub(crate) const NONE: Self =
        Self { draft: DraftSource::None, draft_kv_type: None, draft_max: 0, draft_p_min: 0.0 };

    /// The file of the model that makes guesses, if one does.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.draft {
            DraftSource::File(path) => Some(path),
            _ => None,
        }
    }

    /// What makes guesses at the tail, beside a model whose keys and values are stored so.
    pub(crate) fn drafter(&self, key_type: KvType, value_type: KvType) -> Option<TailDrafter> {
        let own = |kind| self.draft_kv_type.unwrap_or(kind);
        match &self.draft {
            _ if self.draft_max == 0 => None,
            DraftSource::None | DraftSource::Lookup => None,
            DraftSource::Mtp => Some(TailDrafter::Mtp),
            DraftSource::File(_) => Some(TailDrafter::Model { key_type: own(key_type), value_type: own(value_type) }),
        }
    }

    /// What sessions are told.
    pub(crate) fn settings(&self) -> Result<DraftSettings> {
        let Self { draft_max: most, draft_p_min: least_chance, .. } = *self;
        ensure!(most <= MOST_DRAFTS, "--draft-max is {most}, it must be at most {MOST_DRAFTS}");
        ensure!((0.0..=1.0).contains(&least_chance), "--draft-p-min is {least_chance}, it must be from 0 to 1");
        let lookup = DraftSettings { most, least_chance, lookup: most > 0, proposals: 0 };
        Ok(match &self.draft {
            DraftSource::None => DraftSettings::NONE,
            DraftSource::Lookup => lookup,
            DraftSource::Mtp => DraftSettings { proposals: most.min(MOST_OF_MTP), ..lookup },
            DraftSource::File(_) => DraftSettings { proposals: most, ..lookup },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_is_named_like_one() {
        for (text, expected) in
            [("none", DraftSource::None), ("lookup", DraftSource::Lookup), ("mtp", DraftSource::Mtp)]
        {
            assert_eq!(source(text).as_ref(), Ok(&expected));
            assert_eq!(expected.name(), text);
        }
        for path in ["small.gguf", "./small", "/models/mtp"] {
            assert_eq!(source(path), Ok(DraftSource::File(path.into())));
        }
        for wrong in ["", "small", "MTP", "small.gguf.part"] {
            assert!(source(wrong).expect_err(wrong).contains("none, lookup, mtp, or the path of a GGUF file"));
        }
    }

    #[test]
    fn a_draft_model_stores_as_the_model_unless_told() {
        let file = DraftArgs::of(DraftSource::File("small.gguf".into()));
        let [key_type, value_type] = [KvType::Q8_0, KvType::Q4_0];
        assert_eq!(file.drafter(key_type, value_type), Some(TailDrafter::Model { key_type, value_type }));
        let own = DraftArgs { draft_kv_type: Some(KvType::F32), ..file.clone() };
        let stored = TailDrafter::Model { key_type: KvType::F32, value_type: KvType::F32 };
        assert_eq!(own.drafter(key_type, value_type), Some(stored));
        assert_eq!(DraftArgs { draft_max: 0, ..file }.drafter(key_type, value_type), None);
        assert_eq!(DraftArgs::of(DraftSource::Mtp).drafter(key_type, value_type), Some(TailDrafter::Mtp));
        assert_eq!(DraftArgs::of(DraftSource::Lookup).drafter(key_type, value_type), None);
    }
}
