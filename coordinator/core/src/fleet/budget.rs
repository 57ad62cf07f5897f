//! How the memory of all models is divided.

/// Vectors have this part of the budget, unless their largest model needs more or all of them need less.
const VECTORS: u64 = 8;

/// What a model's memory is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Models that write texts.
    Texts,
    /// Models that read them.
    Vectors,
}

/// Bytes for the models of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// For models that write texts.
    pub texts: u64,
    /// For models that read them.
    pub vectors: u64,
}

/// A model that has no room even alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// Which.
    pub place: usize,
    /// Bytes that it needs.
    pub needed: u64,
    /// Bytes that its part would have.
    pub budget: u64,
}

impl Budget {
    /// Divides bytes so that every one of these models can be loaded when nothing else of its kind is.
    ///
    /// # Errors
    /// A model that could never be loaded.
    pub fn divide(total: u64, models: &[(Part, u64)]) -> Result<Self, TooLarge> {
        let bytes = models.iter().filter(|(part, _)| *part == Part::Vectors).map(|(_, bytes)| *bytes);
        let (largest, all) = (bytes.clone().max().unwrap_or(0), bytes.fold(0, u64::saturating_add));
        let has_texts = models.iter().any(|(part, _)| *part == Part::Texts);
        let share = if has_texts { total / VECTORS } else { total };
        let vectors = share.max(largest).min(all).min(total);
        let budget = Self { texts: total - vectors, vectors };
        let too_large = models.iter().position(|(part, bytes)| *bytes > budget.of(*part));
        match too_large {
            None => Ok(budget),
            Some(place) => {
                let (part, needed) = models[place];
                Err(TooLarge { place, needed, budget: budget.of(part) })
            }
        }
    }

    /// The bytes of a part.
    pub fn of(&self, part: Part) -> u64 {
        match part {
            Part::Texts => self.texts,
            Part::Vectors => self.vectors,
        }
    }
}
