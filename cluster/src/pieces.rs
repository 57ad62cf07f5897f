//! What this node gives to others: pieces of models, and what its disk tier keeps.

use paceline_shard::DiskTier;
use paceline_shard::sharing::Request;
use paceline_transport::{PieceRequest, PieceSource};
use paceline_weights::{ModelHash, PieceReader};

/// What this node can hand out.
pub(crate) struct Pieces {
    pub(crate) models: PieceReader,
    pub(crate) disk: Option<DiskTier>,
}

impl Pieces {
    /// Pieces of models alone.
    pub(crate) fn of_models(models: PieceReader) -> Self {
        Self { models, disk: None }
    }
}

impl PieceSource for Pieces {
    fn read(&self, PieceRequest { of, piece }: &PieceRequest) -> Result<Vec<u8>, String> {
        // Hashes of models and keys of entries never meet.
        let kept = || self.disk.as_ref()?.give(Request { of: *of, number: *piece });
        self.models.read(&ModelHash(*of), *piece).or_else(|error| kept().ok_or_else(|| error.to_string()))
    }
}
