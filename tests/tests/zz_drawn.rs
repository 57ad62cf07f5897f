//! scratch
use paceline_tests::models::drawn;
use paceline_gguf::Gguf;
#[test]
fn drawn_equal() {
    for name in ["nano-f32","nano-moe-f32","nano-mtp-f32","nano16-f32","nano-moe16-f32","mini-f32","mini-F16","mini-BF16","mini-Q8_0","mini16-Q8_0","mini16-mtp-Q8_0","mini-mtp-f32","mini-qwen3-f32","mini-llama-f32"] {
        let ours = Gguf::from_vec(drawn(name).to_vec(), name).unwrap();
        let theirs = Gguf::open(std::path::Path::new(&format!("/work/shared/models/{name}.gguf"))).unwrap();
        let mut bad = 0;
        for t in theirs.tensors() {
            let Some(o) = ours.tensor(t.name) else { println!("{name}: {} missing", t.name); bad+=1; continue };
            if o.shape != t.shape || o.kind != t.kind { println!("{name}: {t:?} vs {o:?}"); bad+=1; continue }
            if o.data != t.data { let n = o.data.iter().zip(t.data).filter(|(a,b)| a!=b).count(); println!("{name}: {} differs in {n} of {} bytes", t.name, t.data.len()); bad+=1; }
        }
        assert_eq!(ours.tensors().len(), theirs.tensors().len());
        for (k,v) in theirs.metadata().iter() { if ours.metadata().get(k)!=Some(v) { println!("{name}: {k} {:?}", ours.metadata().get(k).is_some()); } }
        println!("{name}: {bad} bad");
    }
}
