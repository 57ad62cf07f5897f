//! Pieces of models for other nodes.

use paceline_transport::{PieceRequest, PieceSource};
use paceline_weights::{ModelHash, PieceReader};

/// What this node can hand out.
#[derive(Debug)]
pub(crate) struct Pieces(pub(crate) PieceReader);

impl PieceSource for Pieces {
    fn read(&self, request: &PieceRequest) -> Result<Vec<u8>, String> {
        self.0.read(&ModelHash(request.model), request.piece).map_err(|error| error.to_string())
    }
}
