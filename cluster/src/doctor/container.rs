//! Checks of what this process runs in: its limits, its container, and who manages control groups.

use std::io::ErrorKind;

use serde_json::Value;

use super::Host;
use super::finding::{Checked, Finding, Unknown};
use crate::host::{self, locking};

/// The connections that the API takes at once, and as many files again for everything else.
const ENOUGH_FILES: u64 = 1024;

/// How many files and sockets may be open.
pub(super) fn open_files(host: &Host) -> Checked {
    let limit = host.read("proc/self/limits", |text| locking::limit(text, "Max open files"))?;
    Ok(Some(match limit {
        u64::MAX => Finding::good("as many as wanted"),
        ENOUGH_FILES.. => Finding::good(format!("{limit} may be open")),
        _ => {
            let found = format!("only {limit} may be open, and every connection is one: many clients will be refused");
            Finding::warning(found, "`ulimit -n 65536` in the shell that starts it, or LimitNOFILE=65536 in its unit")
        }
    }))
}

/// Whether this is a container.
pub(super) fn container(host: &Host) -> Checked {
    let Some(kind) = kind_of_container(host) else { return Ok(Some(Finding::good("this is no container"))) };
    let advice = "a coordinator and shards of several hosts need its network (`docker run --network host`), or `--advertise`; \
                  docs/deploy.md has both";
    Ok(Some(Finding::note(
        format!("this is a container of {kind}: its limits hold here, and its addresses may be its own"),
        advice,
    )))
}

/// Who made the container that this is, if it is one.
fn kind_of_container(host: &Host) -> Option<&'static str> {
    let signs = [
        ("var/run/secrets/kubernetes.io", "Kubernetes"),
        ("run/.containerenv", "Podman"),
        (".dockerenv", "Docker"),
        ("run/systemd/container", "a manager that systemd knows"),
    ];
    let sign = signs.into_iter().find(|(path, _)| host.has(path)).map(|(_, kind)| kind);
    // Where control groups have no namespace, the path of the first process's group tells.
    let group = host.text("proc/1/cgroup").unwrap_or_default();
    let names = [("kubepods", "Kubernetes"), ("docker", "Docker"), ("containerd", "containerd"), ("/lxc", "LXC")];
    sign.or_else(|| names.into_iter().find(|(name, _)| group.contains(name)).map(|(_, kind)| kind))
}

/// Which of the kernel's interfaces tell of limits.
pub(super) fn groups(host: &Host) -> Checked {
    match tree(host) {
        Some(Tree::Two) => Ok(Some(Finding::good("version 2: limits of memory and cores are seen"))),
        Some(Tree::Hybrid) => {
            Ok(Some(Finding::good("version 1, beside an empty tree of version 2 (hybrid): limits are seen")))
        }
        Some(Tree::One) => Ok(Some(Finding::good("version 1: limits of memory and cores are seen"))),
        None => Err(Unknown::because(
            "/sys/fs/cgroup has no tree of groups, so limits are not seen: say `--memory` and `--threads`",
        )),
    }
}

/// Trees of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tree {
    One,
    Hybrid,
    Two,
}

fn tree(host: &Host) -> Option<Tree> {
    let has = |name: &str| host.has(&format!("sys/fs/cgroup/{name}"));
    if has("cgroup.controllers") {
        Some(Tree::Two)
    } else if has("unified") {
        Some(Tree::Hybrid)
    } else {
        (has("memory") || has("cpu")).then_some(Tree::One)
    }
}

/// Whether Docker and systemd manage the same groups without knowing of each other.
pub(super) fn docker(host: &Host) -> Checked {
    let installed = ["etc/docker", "run/docker.sock", "usr/bin/dockerd"].into_iter().any(|path| host.has(path));
    // Inside of a container nothing is seen of the host's.
    if !installed || kind_of_container(host).is_some() {
        return Ok(None);
    }
    let systemd = host.has("run/systemd/system");
    // What Docker takes if nothing is said.
    let usual = if systemd && tree(host) == Some(Tree::Two) { "systemd" } else { "cgroupfs" };
    let driver = group_driver(host)?.unwrap_or_else(|| usual.to_owned());
    if !(systemd && driver == "cgroupfs") {
        return Ok(Some(Finding::good(format!("the control groups of its containers are managed by {driver}"))));
    }
    let found = "it manages control groups itself (cgroupfs) beside systemd, which may take limits and devices from running \
                 containers when it is reloaded";
    let advice = "put \"exec-opts\": [\"native.cgroupdriver=systemd\"] into /etc/docker/daemon.json, and `sudo systemctl restart \
                  docker`";
    Ok(Some(Finding::warning(found, advice)))
}

/// The driver that Docker's configuration names.
fn group_driver(host: &Host) -> Result<Option<String>, Unknown> {
    const CONFIGURATION: &str = "etc/docker/daemon.json";
    let text = match host::read(&host.path(CONFIGURATION)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Unknown::unreadable(CONFIGURATION, &error)),
    };
    let settings: Value = serde_json::from_str(&text).map_err(|_| Unknown::senseless(CONFIGURATION))?;
    let options = settings["exec-opts"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Ok(options.filter_map(|option| option.strip_prefix("native.cgroupdriver=")).next_back().map(str::to_owned))
}
