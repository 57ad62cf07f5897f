//! GPT-2's printable alphabet for bytes: every byte is one character, so that tokens are strings.
//!
//! Printable Latin-1 characters stand for themselves; the other 68 bytes are `U+0100` and up, in order.

/// Whether `byte` stands for itself.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

const CHARACTERS: [char; 256] = {
    let mut characters = ['\0'; 256];
    let mut next = 0x100_u32;
    let mut byte = 0;
    while byte < 256 {
        if is_printable(byte as u8) {
            characters[byte] = byte as u8 as char;
        } else {
            characters[byte] = char::from_u32(next).expect("U+0100 to U+0143 are characters");
            next += 1;
        }
        byte += 1;
    }
    characters
};

/// The bytes of `U+0100` and up.
const SHIFTED: [u8; 68] = {
    let mut shifted = [0; 68];
    let mut next = 0;
    let mut byte = 0;
    while byte < 256 {
        if !is_printable(byte as u8) {
            shifted[next] = byte as u8;
            next += 1;
        }
        byte += 1;
    }
    shifted
};

/// The character of `byte`.
pub(crate) fn character(byte: u8) -> char {
    CHARACTERS[byte as usize]
}

/// The byte of `character`, if it is in the alphabet.
pub(crate) fn byte(character: char) -> Option<u8> {
    let code = character as u32;
    match u8::try_from(code) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => SHIFTED.get(code as usize - 0x100).copied(),
    }
}

/// The bytes that `spelling` stands for. Characters outside the alphabet stand for their own UTF-8.
pub(crate) fn decode(spelling: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(spelling.len());
    for letter in spelling.chars() {
        match byte(letter) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        for value in 0..=255 {
            assert_eq!(byte(character(value)), Some(value));
        }
        assert_eq!(character(b' '), 'Ġ');
        assert_eq!(character(b'\n'), 'Ċ');
        assert_eq!(character(0xad), 'Ń');
        assert_eq!(byte('\n'), None);
        assert_eq!(byte('ń'), None);
        assert_eq!(byte('\u{7f}'), None);
    }

    #[test]
    fn letters_outside_the_alphabet_are_kept() {
        assert_eq!(decode("Ġa你"), " a你".as_bytes());
    }
}
