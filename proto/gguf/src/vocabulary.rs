//! Whether two models speak of the same tokens.

use crate::{Error, Gguf, Result, StringArray};

/// How tokens are spelled, in the order of their ids.
const TOKENS: &str = "tokenizer.ggml.tokens";

impl Gguf {
    /// Checks that another model has the vocabulary of this one, token by token, and says how many tokens that has.
    ///
    /// # Errors
    /// The first token that differs, or both counts; a file without a vocabulary.
    pub fn check_same_vocabulary(&self, other: &Gguf) -> Result<usize> {
        let (own, others) = (self.tokens()?, other.tokens()?);
        let differ = |(_, (own, other)): &(usize, (&str, &str))| own != other;
        if let Some((token, (wanted, found))) = own.iter().zip(others.iter()).enumerate().find(differ) {
            let (file, model) = (other.file().to_owned(), self.name().to_owned());
            return Err(Error::OtherToken { file, model, token, found: found.to_owned(), wanted: wanted.to_owned() });
        }
        if own.len() != others.len() {
            let (file, model) = (other.file().to_owned(), self.name().to_owned());
            return Err(Error::OtherTokenCount { file, model, found: others.len(), wanted: own.len() });
        }
        Ok(own.len())
    }

    fn tokens(&self) -> Result<&StringArray> {
        self.metadata().strings(TOKENS)?.ok_or_else(|| self.metadata().missing(TOKENS))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Gguf, testing::GgufWriter};

    fn file(name: &str, tokens: &[&str]) -> Gguf {
        let mut writer = GgufWriter::new();
        writer.metadata("tokenizer.ggml.tokens", tokens);
        Gguf::from_vec(writer.to_vec(), name).unwrap()
    }

    #[test]
    fn the_first_difference_is_told() {
        let model = file("m.gguf", &["a", "b", "c"]);
        assert_eq!(model.check_same_vocabulary(&file("d.gguf", &["a", "b", "c"])).unwrap(), 3);
        let refused = |tokens: &[&str]| model.check_same_vocabulary(&file("d.gguf", tokens)).unwrap_err().to_string();
        assert_eq!(
            refused(&["a", "x\u{1b}", "y", "z"]),
            "d.gguf: token 1 is \"x\\u{1b}\", in m.gguf it is \"b\"; drafts need the same vocabulary"
        );
        assert_eq!(refused(&["a", "b"]), "d.gguf: has 2 tokens, m.gguf has 3; drafts need the same vocabulary");
        assert_eq!(
            refused(&["a", "b", "c", "d"]),
            "d.gguf: has 4 tokens, m.gguf has 3; drafts need the same vocabulary"
        );
        let none = Gguf::from_vec(GgufWriter::new().to_vec(), "d.gguf").unwrap();
        let message = model.check_same_vocabulary(&none).unwrap_err().to_string();
        assert_eq!(message, "d.gguf: key \"tokenizer.ggml.tokens\" is missing");
    }
}
