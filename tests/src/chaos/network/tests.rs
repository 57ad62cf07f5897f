//! Cuts lose packets and hold streams back; slow links deliver everything, later.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use super::*;

const MOMENT: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(30);

/// What arrives at a socket within a time.
fn next(socket: &UdpSocket, time: Duration) -> Option<(Vec<u8>, SocketAddr)> {
    socket.set_read_timeout(Some(time)).expect("a socket");
    let mut bytes = [0; 100];
    let (count, from) = socket.recv_from(&mut bytes).ok()?;
    Some((bytes[..count].to_vec(), from))
}

#[test]
fn packets_go_there_and_back_unless_the_link_is_cut() {
    let network = Network::new().expect("a network");
    let coordinator = UdpSocket::bind((own(0), network.ports().data)).expect("a port");
    let shards: Vec<_> = (1..3).map(|host| (host, network.add(host).expect("addresses").1)).collect();
    let sockets: Vec<_> =
        shards.iter().map(|(host, port)| UdpSocket::bind((own(*host), *port)).expect("a port")).collect();
    let towards = (entrance(2), shards[1].1);
    sockets[0].send_to(b"there", towards).expect("sent");
    let (packet, from) = next(&sockets[1], PATIENCE).expect("a packet");
    assert_eq!(packet, b"there");
    sockets[1].send_to(b"back", from).expect("sent");
    assert_eq!(next(&sockets[0], PATIENCE).expect("a packet").0, b"back");

    network.between(1, 2, Some(Weather::Cut));
    sockets[0].send_to(b"lost", towards).expect("sent");
    sockets[1].send_to(b"lost", from).expect("sent");
    assert_eq!(next(&sockets[1], MOMENT), None);
    assert_eq!(next(&sockets[0], MOMENT), None);
    // Only this link.
    sockets[0].send_to(b"results", (coordinator_seen_by(1), network.ports().data)).expect("sent");
    assert_eq!(next(&coordinator, PATIENCE).expect("a packet").0, b"results");
    network.between(0, 1, Some(Weather::Cut));
    sockets[0].send_to(b"lost", (coordinator_seen_by(1), network.ports().data)).expect("sent");
    assert_eq!(next(&coordinator, MOMENT), None);

    network.heal();
    network.between(1, 2, Some(Weather::Slow(MOMENT)));
    let begun = std::time::Instant::now();
    sockets[0].send_to(b"late", towards).expect("sent");
    assert_eq!(next(&sockets[1], PATIENCE).expect("a packet").0, b"late");
    assert!(begun.elapsed() >= MOMENT);
}

#[test]
fn streams_are_held_back_while_the_link_is_cut() {
    let network = Network::new().expect("a network");
    let listener = TcpListener::bind(("0.0.0.0", network.ports().control)).expect("a port");
    let (joins_at, _) = network.add(1).expect("addresses");
    let mut shard = TcpStream::connect(joins_at).expect("a connection");
    shard.write_all(b"hello").expect("sent");
    let (mut coordinator, _) = listener.accept().expect("a connection");
    assert_eq!(coordinator.local_addr().expect("an address").ip(), coordinator_seen_by(1));
    let mut bytes = [0; 5];
    coordinator.read_exact(&mut bytes).expect("read");
    assert_eq!(&bytes, b"hello");

    network.between(0, 1, Some(Weather::Cut));
    coordinator.write_all(b"order").expect("sent");
    shard.set_read_timeout(Some(MOMENT)).expect("a socket");
    let error = shard.read(&mut bytes).expect_err("nothing comes");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    network.heal();
    shard.set_read_timeout(Some(PATIENCE)).expect("a socket");
    shard.read_exact(&mut bytes).expect("read");
    assert_eq!(&bytes, b"order");
}
