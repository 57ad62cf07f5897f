//! What the membership decides, carried out: rows made, put in force, switched and ended.

mod actor;
