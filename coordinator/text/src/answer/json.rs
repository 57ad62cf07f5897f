//! Looking into JSON that is not complete yet.

/// What stands somewhere in an incomplete text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It ends here (exclusive, in bytes).
    End(usize),
    /// Its end has not come yet.
    More,
    /// It is something else.
    Not,
}

/// The place of the first character from `from` on that is not JSON's white space.
pub(super) fn after_space(text: &str, from: usize) -> usize {
    let space = text.as_bytes()[from..].iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    from + space
}

/// The end of the string that begins at `from`.
pub(super) fn string_end(text: &str, from: usize) -> Found {
    let bytes = &text.as_bytes()[from..];
    match bytes.first() {
        None => return Found::More,
        Some(b'"') => {}
        Some(_) => return Found::Not,
    }
    let mut value = ValueEnd::default();
    match bytes.iter().position(|&byte| value.take(byte)) {
        Some(last) => Found::End(from + last + 1),
        None => Found::More,
    }
}

/// The end of the value that begins at `from`. A number ends where something else begins.
pub(super) fn value_end(text: &str, from: usize) -> Found {
    let bytes = &text.as_bytes()[from..];
    match bytes.first() {
        None => Found::More,
        Some(b'{' | b'[' | b'"') => {
            let mut value = ValueEnd::default();
            match bytes.iter().position(|&byte| value.take(byte)) {
                Some(last) => Found::End(from + last + 1),
                None => Found::More,
            }
        }
        Some(byte) if byte.is_ascii_alphanumeric() || *byte == b'-' => {
            let in_word = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
            let end = from + bytes.iter().take_while(in_word).count();
            if end == text.len() { Found::More } else { Found::End(end) }
        }
        Some(_) => Found::Not,
    }
}

/// Finds the end of a string, list or object, byte by byte. Takes no offence at what stands between its brackets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ValueEnd {
    depth: usize,
    pub(super) in_string: bool,
    escaped: bool,
}

impl ValueEnd {
    /// Takes the next byte; true if it is the last.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return !self.in_string && self.depth == 0;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// Writes `text` as it stands within a JSON string, without the quotes.
pub(super) fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
