//! scratch
use minijinja::{Environment, context};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let stack: usize = args[1].parse().unwrap();
    let fuel: u64 = args[2].parse().unwrap();
    let src = args[3].clone();
    let h = std::thread::Builder::new().stack_size(stack << 20).spawn(move || {
        let mut env = Environment::new();
        env.set_fuel(Some(fuel));
        env.set_recursion_limit(200);
        let t = std::time::Instant::now();
        env.add_template_owned("a", src).unwrap();
        let r = env.get_template("a").unwrap().render(context! {});
        eprintln!("{:?} {:?}", r.map(|x| x.len()).map_err(|e| e.to_string()), t.elapsed());
    }).unwrap();
    h.join().unwrap();
}
