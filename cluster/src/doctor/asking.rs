//! What the system is asked for, because no file says it: ports, and connections to other hosts.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use crate::coordinator::{CONTROL_PORT, DATA_PORT};

/// A host that has not answered by then is not reached.
const PATIENCE: Duration = Duration::from_secs(3);

/// A port that Paceline wants, and whether it can be had now.
pub(super) struct Port {
    pub(super) number: u16,
    pub(super) wanted: Wanted,
    pub(super) bound: Result<(), ErrorKind>,
}

/// What a port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// HTTP (TCP): without it nothing is served.
    Requests,
    /// A coordinator's control plane (TCP).
    Control,
    /// A coordinator's data endpoint (UDP).
    Data,
}

/// An address that was tried.
pub(super) struct Reached {
    pub(super) address: String,
    /// How long a connection took to be made.
    pub(super) connected: Result<Duration, Unreached>,
}

/// Why no connection was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unreached {
    /// The name is no address, or nobody knows it.
    Name(String),
    /// The host is there, and nobody listens.
    Refused,
    /// Nothing came back for so long.
    Silent(Duration),
    /// The system says why.
    Other(String),
}

/// The ports that Paceline has by default, but `http` for requests.
pub(super) fn ports(http: u16) -> Vec<Port> {
    let tcp = |address: Ipv4Addr, port: u16| TcpListener::bind(SocketAddr::from((address, port))).map(drop);
    let udp = |address: Ipv4Addr, port: u16| UdpSocket::bind(SocketAddr::from((address, port))).map(drop);
    let port =
        |number, wanted, bound: io::Result<()>| Port { number, wanted, bound: bound.map_err(|error| error.kind()) };
    vec![
        port(http, Wanted::Requests, tcp(Ipv4Addr::LOCALHOST, http)),
        port(CONTROL_PORT, Wanted::Control, tcp(Ipv4Addr::UNSPECIFIED, CONTROL_PORT)),
        port(DATA_PORT, Wanted::Data, udp(Ipv4Addr::UNSPECIFIED, DATA_PORT)),
    ]
}

/// Tries to connect to an address, `HOST:PORT`.
pub(super) fn reach(address: &str) -> Reached {
    Reached { address: address.to_owned(), connected: connect(address) }
}

/// Tries all addresses of a name, until one answers.
fn connect(address: &str) -> Result<Duration, Unreached> {
    let addresses = address.to_socket_addrs().map_err(|error| Unreached::Name(error.to_string()))?;
    let mut failed = Unreached::Name("the name has no address".to_owned());
    for address in addresses {
        let begun = Instant::now();
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(begun.elapsed()),
            Err(error) => failed = unreached(&error),
        }
    }
    Err(failed)
}

fn unreached(error: &io::Error) -> Unreached {
    match error.kind() {
        ErrorKind::ConnectionRefused => Unreached::Refused,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Unreached::Silent(PATIENCE),
        _ => Unreached::Other(error.to_string()),
    }
}
