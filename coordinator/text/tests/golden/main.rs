//! Tokens and rendered chats against what the reference implementations gave: see `../data/README.md`; and what the
//! renderings of one turn and the next have in common.

#![cfg(test)]

mod boundaries;
mod templates;
mod tokens;
mod vocabularies;
