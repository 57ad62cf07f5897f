//! Checks of the network: buffers for links between hosts, ports, and other hosts.

use std::io::ErrorKind;
use std::time::Duration;

use paceline_transport::SOCKET_BYTES;

use super::Host;
use super::asking::{Port, Reached, Unreached, Wanted};
use super::finding::{Checked, Entry, Finding};
use crate::text::bytes;

/// A token waits for every link of its row: longer than this per link, and people see it.
const NEAR: Duration = Duration::from_millis(5);

/// How much the system buffers for links between hosts.
pub(super) fn buffers(host: &Host) -> Checked {
    let limit = |name: &str| host.read(&format!("proc/sys/net/core/{name}"), |text| text.trim().parse::<u64>().ok());
    let (receive, send, wanted) = (limit("rmem_max")?, limit("wmem_max")?, SOCKET_BYTES as u64);
    let found = format!("at most {} received and {} sent", bytes(receive), bytes(send));
    if receive >= wanted && send >= wanted {
        return Ok(Some(Finding::good(found)));
    }
    let found = format!("{found}; a link between hosts asks for {} each way, or bursts lose packets", bytes(wanted));
    let advice = format!("for fast networks: `sudo sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}`");
    Ok(Some(Finding::note(found, advice)))
}

/// Whether a port can be had.
pub(super) fn port(port: &Port) -> Entry {
    let Port { number, wanted, bound } = port;
    let (protocol, purpose, flag) = match wanted {
        Wanted::Requests => ("TCP", "for requests", "--port"),
        Wanted::Control => ("TCP", "where shards join a coordinator", "--control"),
        Wanted::Data => ("UDP", "for a coordinator's links", "--data"),
    };
    let Err(error) = bound else {
        return Entry {
            area: format!("port {number}"),
            finding: Finding::good(format!("free ({protocol}, {purpose})")),
        };
    };
    let (why, advice) = match error {
        ErrorKind::AddrInUse => {
            let sockets = if protocol == "TCP" { "-ltnp" } else { "-lunp" };
            let who = format!("`sudo ss {sockets} 'sport = :{number}'` shows who has it, which may be Paceline itself");
            ("in use".to_owned(), format!("{who}; `{flag}` takes another"))
        }
        ErrorKind::PermissionDenied => (
            "not for this user".to_owned(),
            format!(
                "`{flag}` takes one from 1024 on; below that, add AmbientCapabilities=CAP_NET_BIND_SERVICE to the unit"
            ),
        ),
        other => (format!("not to be had ({other})"), format!("`{flag}` takes another")),
    };
    let found = format!("{why} ({protocol}, {purpose})");
    let finding = match wanted {
        Wanted::Requests => Finding::prevents(found, advice),
        Wanted::Control | Wanted::Data => Finding::note(found, advice),
    };
    Entry { area: format!("port {number}"), finding }
}

/// Whether another host is there, and how far away.
pub(super) fn reached(reached: &Reached) -> Entry {
    let Reached { address, connected } = reached;
    let finding = match connected {
        Ok(time) => {
            let found = format!("{address} is connected within {:.1} ms", time.as_secs_f64() * 1e3);
            if *time <= NEAR {
                Finding::good(found)
            } else {
                let advice =
                    "every token waits about as long at every link of its row: cut models over hosts that are nearer";
                Finding::note(found, advice)
            }
        }
        Err(Unreached::Name(reason)) => Finding::prevents(
            format!("{address} is no address: {reason}"),
            "say HOST:PORT, with a name that `getent hosts` knows on this host",
        ),
        Err(Unreached::Refused) => Finding::prevents(
            format!("{address} refuses connections: the host is there, and nothing listens at the port"),
            "start the coordinator there first, and let it listen at an address that others reach (`--control`)",
        ),
        Err(Unreached::Silent(time)) => Finding::prevents(
            format!("{address} does not answer within {} s", time.as_secs()),
            "let the port through every firewall between the hosts, or use the address by which this host sees the other",
        ),
        Err(Unreached::Other(reason)) => Finding::prevents(
            format!("{address} is not reached: {reason}"),
            "see `ip route get HOST` for the way there",
        ),
    };
    Entry { area: "reach".to_owned(), finding }
}
