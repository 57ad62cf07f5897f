//! Generates the messages and the service from `control.proto`; needs no `protoc`.

use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    writeln!(std::io::stdout(), "cargo:rerun-if-changed=proto/control.proto")?;
    let files = protox::compile(["proto/control.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
