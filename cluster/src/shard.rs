//! `paceline shard`: joins a coordinator, and runs the stage that it is given.
//!
//! [`attendance`] is one stay with the coordinator, from the hello to the end of the stream; [`workshop`] carries its
//! orders out; [`stage`] makes and ends a stage, [`moving`] brings a new one the memories of an older; [`fetch`] brings
//! the weights that this host does not have.

mod attendance;
mod fetch;
mod moving;
mod order;
mod others;
mod pauses;
mod stage;
#[cfg(test)]
mod tests;
mod workshop;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::roof::Roof;
use paceline_compute::device::{self as compute, Device as _};
use paceline_control::{Device, Hello};
use paceline_cuda::roof::{Roof as CudaRoof, Sample};
use paceline_proto::{NodeId, frame};
use paceline_shard::DiskTier;
use paceline_transport::Endpoint;
use paceline_transport::identity::{Identity, JoinToken};
use paceline_weights::{Cache, HashCache, PieceReader};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::cli::{CacheDisk, ShardArgs};
use crate::control::{PROGRAM, client};
use crate::devices::Gpu;
use crate::pieces::Pieces;
use crate::shutdown::Signals;
use crate::supervisor::Supervisor;
use crate::{host, leftovers, link, row};
use attendance::Ended;
use fetch::Weights;
use pauses::Pauses;
use workshop::Workshop;

/// So often in a row a newcomer's connection is ended without an answer before it takes that for one: a coordinator that
/// is killed does not come back so fast.
const DROPS: u32 = 3;
/// How long a stage has to end when the shard leaves.
const LEAVE: Duration = Duration::from_secs(3);
/// Memory left to everything that is not planned.
const MARGIN: u64 = 256 << 20;
/// What the measurement of the memory's speed reads: more than caches hold.
const MEASURED_BYTES: usize = 256 << 20;
const MEASURED_PIECE: usize = 16 << 20;

/// Joins, and stays until a signal comes.
pub(crate) fn shard(arguments: &ShardArgs) -> Result<()> {
    let token = token(arguments)?;
    let (device, own) = own_device(arguments)?;
    let disk = arguments.cache_disk.as_ref().map(CacheDisk::start).transpose()?;
    let supervisor = Supervisor::of_environment()?;
    let system = row::system()?;
    let ended = system.block_on(async {
        // Pings come from the task that does the work: they end when the actors' thread hangs.
        tokio::select! {
            ended = run(arguments, token, device, own, disk, &supervisor) => ended,
            () = supervisor.watch(async || true) => Ok(()),
        }
    });
    // Dropping the runtime would wait for a model that is still being hashed or loaded.
    std::mem::forget(system);
    ended
}

async fn run(
    arguments: &ShardArgs,
    token: JoinToken,
    device: Arc<dyn compute::Device>,
    own: Device,
    disk: Option<DiskTier>,
    supervisor: &Supervisor,
) -> Result<()> {
    let mut signals = Signals::new()?;
    supervisor.ready(&format!("waiting for the coordinator at {}", token.address));
    let joining = async {
        // Who finds on its disk what it remembered before is to be known as who it was.
        let seed = arguments.cache_disk.as_ref().map(CacheDisk::seed).transpose()?;
        let (identity, local) = enroll(&token, seed.as_ref()).await?;
        Member::new(arguments, token.address.clone(), identity, local, (device, own, disk), supervisor.clone()).await
    };
    let member = tokio::select! {
        () = signals.next() => return Ok(()),
        member = joining => member?,
    };
    let ended = {
        let mut staying = pin!(member.stay());
        tokio::select! {
            () = signals.next() => {
                supervisor.stopping("leaving: this shard's work goes to others");
                let time = Duration::from_secs(arguments.drain_timeout);
                tokio::select! {
                    () = signals.next() => Ok(()),
                    () = member.drained(time) => Ok(()),
                    ended = &mut staying => ended,
                }
            }
            ended = &mut staying => ended,
        }
    };
    info!("leaving");
    let leaving = async {
        // A stage that computes ends after its step; one that loads is left behind.
        drop(timeout(LEAVE, member.workshop.release_all()).await);
        member.endpoint.close().await;
    };
    tokio::select! {
        () = signals.next() => {}
        () = leaving => {}
    }
    ended
}

/// Gets a certificate, and learns which address of this host reaches the coordinator. One that is not there is waited
/// for; only its refusal is final.
async fn enroll(token: &JoinToken, seed: Option<&[u8; 32]>) -> Result<(Identity, IpAddr)> {
    let (mut pauses, mut drops) = (Pauses::new(), 0);
    loop {
        let enrolled = async {
            let identity = client::enroll(token, seed).await?;
            let local = client::attend(&token.address, &identity).await?.local;
            Ok((identity, local.ip()))
        };
        match enrolled.await {
            Ok(enrolled) => return Ok(enrolled),
            Err(error) if client::is_final(&error) => return Err(error),
            Err(error) if client::was_dropped(&error) && drops + 1 == DROPS => {
                return Err(error.context("is the token unknown to the coordinator, or revoked?"));
            }
            Err(error) => {
                drops = if client::was_dropped(&error) { drops + 1 } else { 0 };
                pause(&mut pauses, &error).await;
            }
        }
    }
}

async fn pause(pauses: &mut Pauses, error: &anyhow::Error) {
    let pause = pauses.next();
    warn!("cannot join: {error:#}; trying again in {:.1} s", pause.as_secs_f32());
    tokio::time::sleep(pause).await;
}

/// A node of a cluster.
struct Member {
    address: String,
    identity: Identity,
    endpoint: Endpoint,
    hello: Hello,
    workshop: Workshop,
    supervisor: Supervisor,
    /// True when this node wants to end.
    leaving: watch::Sender<bool>,
}

impl Member {
    async fn new(
        arguments: &ShardArgs,
        address: String,
        identity: Identity,
        local: IpAddr,
        (device, own, disk): (Arc<dyn compute::Device>, Device, Option<DiskTier>),
        supervisor: Supervisor,
    ) -> Result<Self> {
        let udp = arguments.data.unwrap_or_else(|| SocketAddr::new(local, 0));
        let unix = socket_path(identity.node()).await;
        let endpoint = Endpoint::bind(identity.clone(), udp, Some(&unix)).await;
        let endpoint = endpoint.with_context(|| format!("cannot open the data endpoint at {udp} (UDP)"))?;
        let hello = Hello {
            program: PROGRAM.to_owned(),
            protocol: u32::from(frame::VERSION),
            host: host::name(),
            boot: link::boot().to_owned(),
            device: Some(own),
            data: data_addresses(endpoint.udp_address(), local, arguments.advertise),
            unix: unix.to_string_lossy().into_owned(),
            standby: arguments.standby,
            disk: arguments.cache_disk.as_ref().map_or(0, CacheDisk::bytes),
        };
        let pieces = Arc::new(Pieces { models: PieceReader::new(), disk: disk.clone() });
        endpoint.serve_pieces(Arc::clone(&pieces) as _);
        let folder = cache_folder(arguments.cache.as_deref())?;
        let weights = Weights {
            own: arguments.model.clone(),
            always_fetch: arguments.fetch,
            hashes: HashCache::open(&folder.join("hashes"))?,
            cache: Cache::open(&folder.join("models"), arguments.cache_size.map(gibibytes).transpose()?)?,
            pieces,
            endpoint: endpoint.clone(),
            opened: Mutex::default(),
        };
        let workshop = Workshop::new(device, weights, endpoint.clone(), disk);
        let leaving = watch::Sender::new(false);
        Ok(Self { address, identity, endpoint, hello, workshop, supervisor, leaving })
    }

    /// Asks the coordinator to move this node's work to others, and waits no longer than this. Without work there is
    /// nothing to wait for.
    async fn drained(&self, time: Duration) {
        if self.workshop.is_free() || time.is_zero() {
            return;
        }
        info!("serving on until others have this shard's work; a second signal leaves at once");
        self.leaving.send_replace(true);
        tokio::time::sleep(time).await;
        warn!(seconds = time.as_secs(), "this shard's work was not moved to others in time");
    }

    /// Attends again and again; ends only when the coordinator does not want this node, or no more when it wants to
    /// leave itself.
    async fn stay(&self) -> Result<()> {
        let mut pauses = Pauses::new();
        loop {
            self.supervisor.status(&format!("joining the coordinator at {}", self.address));
            let ended = attendance::attend(self).await;
            self.workshop.release_all().await;
            if *self.leaving.borrow() {
                return Ok(());
            }
            match ended {
                Ok(Ended::Dismissed(reason)) => {
                    info!(reason, "dismissed");
                    return Ok(());
                }
                Ok(Ended::Sent(reason)) => bail!("the coordinator sent this shard away: {reason}"),
                Ok(Ended::Lost(reason)) => {
                    pauses = Pauses::new();
                    let pause = pauses.next();
                    warn!(reason, "the coordinator is lost; joining again in {:.1} s", pause.as_secs_f32());
                    tokio::time::sleep(pause).await;
                }
                Err(error) => pause(&mut pauses, &error).await,
            }
        }
    }
}

fn token(arguments: &ShardArgs) -> Result<JoinToken> {
    let text = match (&arguments.token, &arguments.token_file) {
        (Some(token), _) => token.clone(),
        (None, Some(path)) => {
            std::fs::read_to_string(path).with_context(|| format!("cannot read the token file {}", path.display()))?
        }
        (None, None) => bail!("a shard joins with --token or --token-file: the coordinator prints the token"),
    };
    let mut token: JoinToken = text.trim().parse().context("this is not a token of a coordinator")?;
    if let Some(address) = &arguments.join {
        token.address.clone_from(address);
    }
    Ok(token)
}

/// What computes, and what the coordinator is told of it. Its speed is measured now, in a moment.
fn own_device(arguments: &ShardArgs) -> Result<(Arc<dyn compute::Device>, Device)> {
    if let Some(gpu) = arguments.device.gpu()? {
        let own = own_gpu(arguments, &gpu)?;
        return Ok((gpu.device as _, own));
    }
    let device = cores(arguments)?;
    let own = own_cores(arguments, &device)?;
    Ok((Arc::new(device), own))
}

fn cores(arguments: &ShardArgs) -> Result<CpuDevice> {
    let isa = arguments.isa.map(row::kernels);
    let threads = arguments.threads.unwrap_or_else(host::cores);
    Ok(match arguments.pin {
        None => CpuDevice::new(threads, isa)?,
        Some(first) => {
            let all = host::core_numbers().context("--pin: the system does not say which cores there are")?;
            let own = all.get(first..first.saturating_add(threads));
            let count = all.len();
            let own =
                own.with_context(|| format!("--pin {first}: {threads} threads from there on, of {count} cores"))?;
            CpuDevice::on_cores(own, isa)?
        }
    })
}

/// What the coordinator is told of a GPU, which has memory of its own.
fn own_gpu(arguments: &ShardArgs, gpu: &Gpu) -> Result<Device> {
    let description = compute::Device::describe(gpu.device.as_ref());
    let memory = arguments.memory.map(gibibytes).transpose()?;
    let CudaRoof { read, products } = CudaRoof::measure(gpu.driver(), &Sample::default())?;
    Ok(Device {
        name: description.name,
        detail: description.detail,
        threads: 1,
        memory: memory.unwrap_or_else(|| gpu.free_bytes.saturating_sub(MARGIN)),
        read,
        products,
        own_memory: true,
    })
}

/// What the coordinator is told of this host's cores.
fn own_cores(arguments: &ShardArgs, device: &CpuDevice) -> Result<Device> {
    let description = device.describe();
    let memory = match arguments.memory {
        Some(gib) => gibibytes(gib)?,
        None => host::available_memory().context("the system does not say how much memory is free: say --memory")?,
    };
    let (read, products) = measure(device)?;
    Ok(Device {
        name: description.name,
        detail: description.detail,
        threads: arguments.threads.unwrap_or_else(host::cores) as u64,
        memory: if arguments.memory.is_some() { memory } else { memory.saturating_sub(MARGIN) },
        read,
        products,
        own_memory: arguments.memory.is_some(),
    })
}

/// Bytes read per second and integer products per second, each the best of some samples.
fn measure(device: &CpuDevice) -> Result<(f64, f64)> {
    let roof = Roof::new(device, MEASURED_BYTES)?;
    let (mut read, mut products) = (0.0_f64, 0.0_f64);
    for start in (0..MEASURED_BYTES).step_by(MEASURED_PIECE) {
        read = read.max(roof.read(start..start + MEASURED_PIECE)?);
        products = products.max(roof.dot()?);
    }
    Ok((read, products))
}

fn gibibytes(count: f64) -> Result<u64> {
    if !(count.is_finite() && count > 0.0) {
        bail!("{count} GiB is no amount of memory");
    }
    Ok((count * f64::from(1 << 30)) as u64)
}

/// Where others reach the data endpoint, best first.
fn data_addresses(bound: SocketAddr, local: IpAddr, advertised: Option<IpAddr>) -> Vec<String> {
    let own = if bound.ip().is_unspecified() { local } else { bound.ip() };
    let addresses = advertised.into_iter().chain([own]);
    addresses.map(|address| SocketAddr::new(address, bound.port()).to_string()).collect()
}

/// A socket's path may have about a hundred characters, so it lies in a folder with a short name.
async fn socket_path(node: NodeId) -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = if folder.is_dir() { folder } else { std::env::temp_dir() };
    leftovers::remove(&folder, "paceline-", leftovers::YOUNG).await;
    folder.join(format!("paceline-{}.sock", node.0.simple()))
}

fn cache_folder(folder: Option<&Path>) -> Result<PathBuf> {
    if let Some(folder) = folder {
        return Ok(folder.to_owned());
    }
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    Ok(cache.context("there is no home folder: say with --cache where fetched layers may be kept")?.join("paceline"))
}
