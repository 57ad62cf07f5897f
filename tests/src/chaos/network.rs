//! A network between processes of one machine that can be cut and slowed. It needs no privileges: every host has loopback
//! addresses of its own, and what goes from one to another passes through this program.
//!
//! Host 0 is the coordinator, the others are shards. What host `n` sends the coordinator it sends to
//! `coordinator_seen_by` (its data) and `entrance` (its control plane), and what anybody sends host `n` goes to its
//! `entrance`. A cut loses packets and holds streams back, as a broken cable does: nobody is told.

use std::collections::{HashMap, VecDeque};
use std::io::Result;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Packets on their way; a full network loses the next one, as real ones do.
const QUEUE: usize = 4096;
/// A way that nothing took for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// The largest packet.
const PACKET: usize = 65_536;
/// The first shard's last byte of an address.
const FIRST: u8 = 10;

/// How it is between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Everything arrives later.
    Slow(Duration),
    /// Nothing arrives.
    Cut,
}

/// The weather where it is not fine; the smaller host first.
type Forecast = HashMap<(usize, usize), Weather>;

/// The network. Dropping it ends it.
pub struct Network {
    weather: Arc<watch::Sender<Forecast>>,
    runtime: Runtime,
    ports: Ports,
}

/// Ports of the coordinator.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// The HTTP API, at the loopback's usual address.
    pub http: u16,
    /// The control plane, at every address of the loopback.
    pub control: u16,
    /// Its data endpoint, at [`own`] of host 0.
    pub data: u16,
}

/// The address that a host itself uses.
pub fn own(host: usize) -> IpAddr {
    address(0, if host == 0 { 1 } else { FIRST + host as u8 })
}

/// Where others find a shard's data endpoint, and where the shard finds the coordinator's control plane.
pub fn entrance(host: usize) -> IpAddr {
    address(1, FIRST + host as u8)
}

/// The address of the coordinator as one shard sees it.
fn coordinator_seen_by(host: usize) -> IpAddr {
    address(2, FIRST + host as u8)
}

fn address(net: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, net, last).into()
}

/// Who sends from an address.
fn host_at(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(address) => usize::from(address.octets()[3].saturating_sub(FIRST)),
        IpAddr::V6(_) => 0,
    }
}

/// A port that nothing listens on now.
fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Network {
    /// Makes the network of a coordinator; shards are added.
    ///
    /// # Errors
    /// Where the system has no more sockets.
    pub fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let data = std::net::UdpSocket::bind((own(0), 0))?.local_addr()?.port();
        let ports = Ports { http: free_port()?, control: free_port()?, data };
        Ok(Self { weather: Arc::default(), runtime, ports })
    }

    /// Ports of the coordinator.
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// Connects a shard's host with the coordinator's and all others. Returns where the shard finds the control plane, and
    /// the port that its data endpoint must have.
    ///
    /// # Errors
    /// Where an address cannot be had.
    pub fn add(&self, host: usize) -> Result<(SocketAddr, u16)> {
        let Ports { control, data, .. } = self.ports;
        let sky = Sky(self.weather.subscribe());
        self.runtime.block_on(async {
            let listener = TcpListener::bind((entrance(host), 0)).await?;
            let joined_at = listener.local_addr()?;
            // The coordinator takes the address at which it was reached for its own, as far as this shard is concerned.
            let seen = coordinator_seen_by(host);
            tokio::spawn(streams(listener, SocketAddr::new(seen, control), host, sky.clone()));
            let socket = UdpSocket::bind((seen, data)).await?;
            tokio::spawn(packets(socket, SocketAddr::new(own(0), data), 0, sky.clone()));
            let socket = UdpSocket::bind((entrance(host), 0)).await?;
            let port = socket.local_addr()?.port();
            tokio::spawn(packets(socket, SocketAddr::new(own(host), port), host, sky));
            Ok((joined_at, port))
        })
    }

    /// Changes the weather between two hosts; `None` is fine.
    pub fn between(&self, one: usize, other: usize, weather: Option<Weather>) {
        let pair = (one.min(other), one.max(other));
        self.weather.send_modify(|forecast| match weather {
            Some(weather) => drop(forecast.insert(pair, weather)),
            None => drop(forecast.remove(&pair)),
        });
    }

    /// Fine weather everywhere.
    pub fn heal(&self) {
        self.weather.send_modify(HashMap::clear);
    }
}

/// The weather, as those see it who carry things.
#[derive(Clone)]
struct Sky(watch::Receiver<Forecast>);

impl Sky {
    fn between(&self, one: usize, other: usize) -> Option<Weather> {
        self.0.borrow().get(&(one.min(other), one.max(other))).copied()
    }

    /// Waits as long as nothing arrives, or as long as it takes.
    async fn pass(&mut self, one: usize, other: usize) {
        let pair = (one.min(other), one.max(other));
        if let Some(Weather::Slow(delay)) = self.between(one, other) {
            sleep(delay).await;
        }
        // An error means that the network ends.
        let _ = self.0.wait_for(|forecast| forecast.get(&pair) != Some(&Weather::Cut)).await;
    }
}

/// Carries streams from a shard's host to the coordinator.
async fn streams(listener: TcpListener, to: SocketAddr, host: usize, sky: Sky) {
    while let Ok((near, _)) = listener.accept().await {
        let mut sky = sky.clone();
        tokio::spawn(async move {
            sky.pass(host, 0).await;
            // A coordinator that is not there: the shard sees its connection end.
            let Ok(far) = TcpStream::connect(to).await else { return };
            if near.set_nodelay(true).is_err() || far.set_nodelay(true).is_err() {
                return;
            }
            let ((near_from, near_to), (far_from, far_to)) = (near.into_split(), far.into_split());
            tokio::spawn(stream(near_from, far_to, host, sky.clone()));
            tokio::spawn(stream(far_from, near_to, host, sky));
        });
    }
}

/// One direction of a stream, to its end.
async fn stream(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, host: usize, mut sky: Sky) {
    let mut bytes = vec![0; PACKET];
    while let Ok(count) = from.read(&mut bytes).await {
        sky.pass(host, 0).await;
        if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Carries packets to a host, and the answers back.
async fn packets(socket: UdpSocket, to: SocketAddr, host: usize, sky: Sky) {
    let socket = Arc::new(socket);
    let mut ways: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>> = HashMap::new();
    let mut bytes = vec![0; PACKET];
    loop {
        // Errors tell of answers that found nobody any more.
        let Ok((count, from)) = socket.recv_from(&mut bytes).await else { continue };
        ways.retain(|_, way| !way.is_closed());
        let way = ways.entry(from).or_insert_with(|| {
            let (sender, there) = mpsc::channel(QUEUE);
            // A shard has an entrance of its own to the coordinator, whose address is the way's number.
            let at = socket.local_addr().map_or(0, |at| host_at(at.ip()));
            let near = if host == 0 { at } else { host_at(from.ip()) };
            let way = Way { socket: Arc::clone(&socket), from, to, hosts: (near, host), sky: sky.clone() };
            tokio::spawn(way.carry(there));
            sender
        });
        // A full network loses packets.
        drop(way.try_send(bytes[..count].to_vec()));
    }
}

/// The way of packets between two sockets.
struct Way {
    socket: Arc<UdpSocket>,
    from: SocketAddr,
    to: SocketAddr,
    hosts: (usize, usize),
    sky: Sky,
}

/// A packet that arrives later: when, whether it goes there or back, and its bytes.
type Later = (Instant, bool, Vec<u8>);

impl Way {
    async fn carry(self, mut there: mpsc::Receiver<Vec<u8>>) {
        let Ok(far) = UdpSocket::bind((own(0), 0)).await else { return };
        if far.connect(self.to).await.is_err() {
            return;
        }
        let mut later: VecDeque<Later> = VecDeque::new();
        let mut bytes = vec![0; PACKET];
        loop {
            let due = later.front().map(|(due, ..)| *due);
            let next = async {
                tokio::select! {
                    packet = there.recv() => packet.map(|packet| (true, packet)),
                    // Nobody listens there now: an error for each packet that went.
                    count = far.recv(&mut bytes) => Some((false, bytes[..count.unwrap_or(0)].to_vec())),
                }
            };
            tokio::select! {
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if let Some((_, goes, packet)) = later.pop_front() {
                        self.send(&far, goes, &packet).await;
                    }
                }
                next = timeout(FORGOTTEN, next) => match next {
                    Ok(Some((goes, packet))) => match self.sky.between(self.hosts.0, self.hosts.1) {
                        Some(Weather::Cut) => {}
                        Some(Weather::Slow(delay)) if later.len() < QUEUE => {
                            later.push_back((Instant::now() + delay, goes, packet));
                        }
                        Some(Weather::Slow(_)) => {}
                        None => self.send(&far, goes, &packet).await,
                    },
                    Ok(None) | Err(_) => return,
                }
            }
        }
    }

    async fn send(&self, far: &UdpSocket, goes: bool, packet: &[u8]) {
        // What cannot be sent is lost.
        let _ = if goes { far.send(packet).await } else { self.socket.send_to(packet, self.from).await };
    }
}

#[cfg(test)]
mod tests;
