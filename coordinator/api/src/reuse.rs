//! What clients are told of the cache: how much of a prompt was known, where from, and why not more.

use actix_web::HttpResponseBuilder;
use actix_web::http::header::HeaderName;
use paceline_coordinator::{Reuse, Tier};

/// Tokens of the prompt that were not computed again.
const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-paceline-cached-tokens");
/// Where they were kept; absent if there are none.
const CACHE_TIER: HeaderName = HeaderName::from_static("x-paceline-cache-tier");
/// Why it is not all but the last; absent if it is. One word for machines, and an explanation behind it.
const CACHE_MISS: HeaderName = HeaderName::from_static("x-paceline-cache-miss");

/// Puts it into the headers of a response. Of several answers it is that of the first.
pub(crate) fn tell(mut response: HttpResponseBuilder, reuse: Reuse) -> HttpResponseBuilder {
    response.insert_header((CACHED_TOKENS, reuse.cached));
    if reuse.cached > 0 {
        response.insert_header((CACHE_TIER, tier(reuse.tier)));
    }
    if let Some(missed) = reuse.missed {
        response.insert_header((CACHE_MISS, format!("{}; {missed}", missed.name())));
    }
    response
}

/// The tier as machines know it.
pub(crate) fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::Ram => "ram",
        Tier::Disk => "disk",
    }
}

/// Of several prompts: all tokens, the slowest tier, and the first miss.
pub(crate) fn together(one: Reuse, other: Reuse) -> Reuse {
    Reuse {
        cached: one.cached + other.cached,
        matched: one.matched + other.matched,
        tier: one.tier.max(other.tier),
        missed: one.missed.or(other.missed),
    }
}
