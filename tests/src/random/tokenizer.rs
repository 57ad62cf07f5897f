//! A vocabulary of bytes, as GPT-2 writes them, and a few control tokens.

use paceline_gguf::testing::GgufWriter;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

const CONTROLS: [&str; 7] =
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"];

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Writes a vocabulary of `size` tokens, padded with unused ones.
pub(super) fn write(writer: &mut GgufWriter, size: usize) {
    let mut tokens: Vec<String> = (0..=255).map(|byte| letter(byte).to_string()).collect();
    tokens.extend(CONTROLS.map(str::to_owned));
    let kinds: Vec<i32> = (0..size)
        .map(|id| {
            if id < 256 {
                NORMAL
            } else if id < tokens.len() {
                CONTROL
            } else {
                UNUSED
            }
        })
        .collect();
    tokens.extend((tokens.len()..size).map(|id| format!("[PAD{id}]")));
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    writer
        .metadata("tokenizer.ggml.model", "gpt2")
        .metadata("tokenizer.ggml.pre", "qwen35")
        .metadata("tokenizer.ggml.tokens", tokens.as_slice())
        .metadata("tokenizer.ggml.token_type", kinds.as_slice())
        // Some readers insist on merges; this one makes no token of the vocabulary.
        .metadata("tokenizer.ggml.merges", ["Ġ Ġ"].as_slice())
        .metadata("tokenizer.ggml.eos_token_id", 258)
        .metadata("tokenizer.ggml.padding_token_id", 256)
        .metadata("tokenizer.ggml.bos_token_id", 256)
        .metadata("tokenizer.ggml.add_bos_token", false)
        .metadata("tokenizer.chat_template", TEMPLATE);
}

/// The letter that stands for a byte: itself if it is visible, else one past Latin-1.
fn letter(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return char::from(byte);
    }
    let hidden_before = (0..byte).filter(|other| !visible(*other)).count() as u32;
    char::from_u32(256 + hidden_before).expect("the letters past Latin-1 are valid")
}
