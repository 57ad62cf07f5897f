//! Whether a placement fits, and what would if it does not.

use std::fmt;

use paceline_gguf::{KvType, ModelShape};

use super::{Cache, Error, Host, Memory, Result, Wishes, cut::Stage, render::human};

/// Types to keep keys and values in that every device has, the largest first.
const SENSIBLE_TYPES: [KvType; 2] = [KvType::F16, KvType::Q8_0];
/// The memory of the largest device that is suggested.
const MOST_GIB: u32 = 1024;

/// Smaller wishes that would fit, each with the others as they were; `None` where even the smallest does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WouldFit {
    /// The largest context in tokens, a whole number of pages.
    pub context: Option<usize>,
    /// The most sessions.
    pub sessions: Option<usize>,
    /// The largest type that every device has, for keys and values alike, that is smaller than what was wished for.
    pub key_value_type: Option<KvType>,
    /// It would without the cache.
    pub cache: bool,
    /// Bytes of one device more, where stages have devices of their own.
    pub device: Option<u64>,
}

/// What all stages need together.
fn needed(shape: &ModelShape, stages: &[Stage], wishes: &Wishes) -> Memory {
    stages.iter().map(|stage| Memory::of(shape, stage, wishes)).sum()
}

/// Checks that all stages together fit into the host's memory.
pub(super) fn check(shape: &ModelShape, stages: &[Stage], wishes: &Wishes, host: &Host) -> Result<()> {
    let available = host.memory_bytes;
    let needed = needed(shape, stages, wishes);
    if needed.total() <= available {
        return Ok(());
    }
    let would_fit = WouldFit::search(shape, wishes, |wishes| self::needed(shape, stages, wishes).total() <= available);
    Err(Error::DoesNotFit { needed: Box::new(needed), available, would_fit: Box::new(would_fit) })
}

impl WouldFit {
    /// Searches with `fits`, which says whether wishes would.
    pub(super) fn search(shape: &ModelShape, wishes: &Wishes, fits: impl Fn(&Wishes) -> bool) -> Self {
        let page_tokens = wishes.page_tokens;
        let pages = largest(wishes.context.div_ceil(page_tokens) - 1, |pages| {
            fits(&Wishes { context: pages * page_tokens, ..wishes.clone() })
        });
        let sessions = largest(wishes.sessions - 1, |sessions| fits(&Wishes { sessions, ..wishes.clone() }));
        let per_token = |key, value| shape.key_value_bytes_per_token(0..shape.layers.len(), key, value);
        let wished = per_token(wishes.key_type, wishes.value_type);
        let smaller = SENSIBLE_TYPES.into_iter().find(|&kind| {
            per_token(kind, kind) < wished
                && shape.check_key_value_types(kind, kind).is_ok()
                && fits(&Wishes { key_type: kind, value_type: kind, ..wishes.clone() })
        });
        let context = pages.map(|pages| pages * page_tokens);
        let cache = wishes.cache != Cache::default() && fits(&Wishes { cache: Cache::default(), ..wishes.clone() });
        Self { context, sessions, key_value_type: smaller, cache, device: None }
    }
}

/// The smallest memory of one more device that `fits`: whole GiB, up to what one device may have some day.
pub(super) fn one_more_device(fits: impl Fn(u64) -> bool) -> Option<u64> {
    let most = MOST_GIB as usize;
    let bytes = |gib: usize| (gib as u64) << 30;
    if !fits(bytes(most)) {
        return None;
    }
    // The largest that does not fit, and one more.
    let too_small = largest(most - 1, |gib| !fits(bytes(gib))).unwrap_or(0);
    Some(bytes(too_small + 1))
}

/// The largest number from 1 to `limit` that fits, where all smaller ones fit too.
pub(super) fn largest(limit: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut known, mut limit) = (0, limit);
    while known < limit {
        let middle = limit - (limit - known) / 2;
        if fits(middle) {
            known = middle;
        } else {
            limit = middle - 1;
        }
    }
    (known > 0).then_some(known)
}

impl fmt::Display for WouldFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let context = self.context.map(|context| format!("a context of {context} tokens"));
        let sessions = self.sessions.map(|sessions| match sessions {
            1 => "1 session".to_owned(),
            _ => format!("{sessions} sessions"),
        });
        let kind = self.key_value_type.map(|kind| format!("keys and values of {kind}"));
        let cache = self.cache.then(|| "a smaller cache".to_owned());
        let device = self.device.map(|bytes| format!("one more device with {}", human(bytes)));
        let possible: Vec<String> = [context, sessions, kind, cache, device].into_iter().flatten().collect();
        if possible.is_empty() {
            return f.write_str("use a smaller quantization of the model, smaller steps, or more memory");
        }
        write!(f, "it would fit with {}", possible.join(", or with "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found() {
        for limit in 0..40 {
            for threshold in 0..45 {
                let expected = Some(threshold.min(limit)).filter(|&found| found > 0);
                assert_eq!(largest(limit, |number| number <= threshold), expected);
            }
        }
        assert_eq!(largest(usize::MAX, |_| true), Some(usize::MAX));
    }

    #[test]
    fn what_would_fit_reads_as_a_sentence() {
        let text = |context, sessions, key_value_type| {
            WouldFit { context, sessions, key_value_type, cache: false, device: None }.to_string()
        };
        assert_eq!(
            text(Some(4096), Some(1), Some(KvType::Q8_0)),
            "it would fit with a context of 4096 tokens, or with 1 session, or with keys and values of q8_0"
        );
        assert_eq!(text(None, Some(3), None), "it would fit with 3 sessions");
        assert_eq!(text(None, None, None), "use a smaller quantization of the model, smaller steps, or more memory");
    }
}
