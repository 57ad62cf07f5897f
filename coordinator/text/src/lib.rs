//! Tokenizer, chat templates, incremental detokenizing, stop strings.
