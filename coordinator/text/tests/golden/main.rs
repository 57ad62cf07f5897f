//! Tokens and rendered chats against what the reference implementations gave: see `../data/README.md`.

#![cfg(test)]

mod templates;
mod tokens;
mod vocabularies;
