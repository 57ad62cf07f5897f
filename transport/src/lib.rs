//! Links that carry frames between stages.
