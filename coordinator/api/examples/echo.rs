//! A server without a model.
use paceline_api::{ApiConfig, ApiKeys};
use paceline_coordinator::testing::played_engine;
use paceline_coordinator::{FinishReason, Finished, Generation, ModelCard, Timings, TokenUpdate, Update, Usage};
use paceline_proto::{Logprobs, SessionId, TokenLogprob};
use paceline_text::{ChatTemplate, TokenKind, Tokenizer, Vocabulary, VocabularyModel};
use std::sync::Arc;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut vocabulary = Vocabulary::new(VocabularyModel::Gpt2);
    vocabulary.pre = "gpt-2".to_owned();
    let mut moved = 256_u32..;
    vocabulary.tokens = (0..=255_u32)
        .map(|b| {
            match b {
                33..=126 | 161..=172 | 174..=255 => char::from_u32(b).unwrap(),
                _ => char::from_u32(moved.next().unwrap()).unwrap(),
            }
            .to_string()
            .into()
        })
        .collect();
    vocabulary.kinds = vec![TokenKind::Normal; 256];
    for bracket in ["<|im_start|>", "<|im_end|>"] {
        vocabulary.tokens.push(bracket.into());
        vocabulary.kinds.push(TokenKind::Control);
    }
    vocabulary.eos = Some(257);
    let tokenizer = Arc::new(Tokenizer::new(vocabulary).unwrap());
    let template = Arc::new(ChatTemplate::for_model(None, &tokenizer).unwrap());
    let card = ModelCard {
        id: "echo".into(),
        aliases: vec![],
        created: 1,
        architecture: "none".into(),
        context: 4096,
        trained_context: 4096,
        vocabulary: 258,
        parameters: 0,
        file_bytes: 0,
        stages: 1,
    };
    let (engine, mut played) = played_engine(card, tokenizer, Some(template));
    tokio::spawn(async move {
        while let Some(call) = played.calls.recv().await {
            let (sender, updates) = tokio::sync::mpsc::channel(8);
            let Ok(()) = call.answer.send(Ok(Generation { session: SessionId(uuid::Uuid::new_v4()), updates })) else {
                println!("left in queue");
                continue;
            };
            tokio::spawn(async move {
                let prompt = call.request.prompt.clone();
                let limit = call.request.max_tokens.unwrap_or(usize::MAX).min(prompt.len());
                let slow = call.request.sampling.top_k == 99;
                for (n, token) in prompt[..limit].iter().enumerate() {
                    if slow {
                        tokio::select! { () = sender.closed() => { println!("left after {n} tokens"); return }, () = tokio::time::sleep(Duration::from_secs(3600)), if n > 3 => {}, () = std::future::ready(()), if n <= 3 => {} }
                    }
                    let text = if *token < 128 { (*token as u8 as char).to_string() } else { String::new() };
                    let logprobs = call.request.sampling.logprobs.map(|k| {
                        Box::new(Logprobs {
                            chosen: -0.5,
                            top: (0..k).map(|k| TokenLogprob { token: 65 + k, logprob: -(k as f32) }).collect(),
                        })
                    });
                    if sender.send(Update::Token(TokenUpdate { token: *token, text, logprobs })).await.is_err() {
                        println!("left");
                        return;
                    }
                }
                let usage = Usage { prompt_tokens: prompt.len(), completion_tokens: limit, cached_tokens: 0 };
                let _ = sender
                    .send(Update::Finished(Finished {
                        reason: if limit < prompt.len() { FinishReason::Length } else { FinishReason::EndToken },
                        text: String::new(),
                        usage,
                        timings: Timings {
                            queued: Duration::ZERO,
                            prefill: Duration::from_millis(2),
                            decode: Duration::from_millis(7),
                        },
                    }))
                    .await;
            });
        }
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let config = ApiConfig { api_keys: ApiKeys::new(["secret"]), ..ApiConfig::default() };
    paceline_api::serve(engine, config, listener, async {
        let _ = tokio::signal::ctrl_c().await;
    })
    .await
    .unwrap();
}
