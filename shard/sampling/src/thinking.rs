//! Reasoning that ends in time.

use paceline_proto::ThinkingSettings;

/// What must become of an answer after some of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is said yet: reasoning may begin.
    Start,
    /// So many tokens of reasoning.
    Thinking(u32),
    /// So many tokens of the closing are said; the rest of it must follow.
    Closing(usize),
    /// Reasoning is over, or there was none.
    Answering,
}

impl Phase {
    /// Before the first token.
    pub(crate) fn first(settings: &ThinkingSettings) -> Self {
        if settings.is_open { Self::Thinking(0).checked(settings) } else { Self::Start }
    }

    /// After one more token. `in_form`: the closing is completed also where the model closes by itself.
    pub(crate) fn after(self, token: u32, settings: &ThinkingSettings, in_form: bool) -> Self {
        match self {
            Self::Start if settings.opens == Some(token) => Self::Thinking(0).checked(settings),
            Self::Start | Self::Answering => Self::Answering,
            Self::Thinking(_) if token == settings.closes && in_form => {
                let place = settings.closing.iter().position(|closing| *closing == token);
                place.map_or(Self::Answering, |place| Self::Closing(place).after(token, settings, in_form))
            }
            Self::Thinking(_) if token == settings.closes => Self::Answering,
            Self::Thinking(count) => Self::Thinking(count + 1).checked(settings),
            Self::Closing(said) if said + 1 < settings.closing.len() => Self::Closing(said + 1),
            Self::Closing(_) => Self::Answering,
        }
    }

    /// The only token that may follow, if there is only one.
    pub(crate) fn forced(self, settings: &ThinkingSettings) -> Option<u32> {
        match self {
            Self::Closing(said) => settings.closing.get(said).copied(),
            Self::Start | Self::Thinking(_) | Self::Answering => None,
        }
    }

    /// The closing, once the budget is used up.
    fn checked(self, settings: &ThinkingSettings) -> Self {
        match self {
            Self::Thinking(count) if settings.budget.is_some_and(|budget| count >= budget) => Self::Closing(0),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: u32 = 1;
    const CLOSE: u32 = 2;
    const BREAK: u32 = 3;

    /// Says `wanted` as far as it is left to choose, and gives what is said.
    fn said(is_open: bool, budget: Option<u32>, wanted: &[u32]) -> Vec<u32> {
        said_in_form(is_open, budget, wanted, false)
    }

    fn said_in_form(is_open: bool, budget: Option<u32>, wanted: &[u32], in_form: bool) -> Vec<u32> {
        let closing = vec![BREAK, CLOSE, BREAK];
        let settings = ThinkingSettings { is_open, opens: Some(OPEN), closes: CLOSE, budget, closing };
        let mut phase = Phase::first(&settings);
        let mut wanted = wanted.iter().copied();
        let mut said = Vec::new();
        while let Some(token) = phase.forced(&settings).or_else(|| wanted.next()) {
            said.push(token);
            phase = phase.after(token, &settings, in_form);
        }
        said
    }

    #[test]
    fn reasoning_is_closed_when_its_budget_is_used_up() {
        assert_eq!(said(true, Some(2), &[7, 8, 9]), [7, 8, BREAK, CLOSE, BREAK, 9]);
        assert_eq!(said(true, Some(0), &[7]), [BREAK, CLOSE, BREAK, 7]);
        assert_eq!(said(false, Some(1), &[OPEN, 7, 8]), [OPEN, 7, BREAK, CLOSE, BREAK, 8]);
    }

    #[test]
    fn what_closes_by_itself_or_does_not_reason_is_left_alone() {
        assert_eq!(said(true, Some(3), &[7, CLOSE, 8, 9, 9, 9]), [7, CLOSE, 8, 9, 9, 9]);
        assert_eq!(said_in_form(true, None, &[7, CLOSE, 8], true), [7, CLOSE, BREAK, 8]);
        assert_eq!(said(true, None, &[7, 8, 9]), [7, 8, 9]);
        assert_eq!(said(false, Some(1), &[7, OPEN, 8, 9]), [7, OPEN, 8, 9]);
    }
}
