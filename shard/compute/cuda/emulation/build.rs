//! Compiles the CUDA kernels as C++, together with a table of their names.

use std::fmt::Write as _;
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let kernels = Path::new("../kernels");
    let mut files: Vec<PathBuf> = fs::read_dir(kernels)
        .expect("the kernels lie beside this crate")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    files.sort();
    let (mut includes, mut names) = (String::new(), String::new());
    for file in &files {
        let path = file.canonicalize().expect("a file that was found");
        writeln!(includes, "#include \"{}\"", path.display()).expect("strings take what is written");
        for name in kernels_of(&fs::read_to_string(file).expect("a readable file")) {
            writeln!(names, "emulation::kernel(\"{name}\", {name}),").expect("strings take what is written");
        }
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to write"));
    fs::write(out.join("kernels.inc"), includes).expect("cargo's folder can be written");
    fs::write(out.join("names.inc"), names).expect("cargo's folder can be written");
    for folder in ["../kernels", "cpp"] {
        writeln!(stdout(), "cargo::rerun-if-changed={folder}").expect("cargo listens");
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        // Nothing may be fused that the sources do not fuse; kernels read floats, codes and words of the same memory.
        .flag("-ffp-contract=off")
        .flag("-fno-strict-aliasing")
        // A GPU refuses words at places that are not multiples of their size; so does this.
        .flag_if_supported("-fsanitize=alignment")
        .flag_if_supported("-fsanitize-undefined-trap-on-error")
        .define("CUDA_ON_CPU", None)
        .include("cpp")
        .include(kernels)
        .include(&out)
        .file("cpp/emulation.cpp")
        .compile("paceline_emulation");
}

/// The kernels that a file defines: plainly, or by a macro that makes one for each format.
fn kernels_of(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("extern \"C\" __global__ void ") {
            names.extend(rest.split('(').next().map(str::to_owned));
        } else if let Some(rest) = line.strip_prefix("OF_") {
            let format = rest.split(['(', ',']).nth(1).expect("a macro names a format");
            names.extend(["linear", "experts"].map(|operation| format!("{operation}_{format}")));
        }
    }
    names
}
