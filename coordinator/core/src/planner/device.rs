//! What the planner knows of devices and of the links between them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Error, MAX_THREADS, Result};

/// Seconds of a step that are neither reading nor multiplying, if nothing else is known: waking, sampling, frames.
pub const STEP_OVERHEAD: f64 = 50e-6;
/// What the cores of a host are called.
pub(super) const CPU: &str = "cpu";
/// Hosts and devices that a plan can have; rows are never that long.
pub const MAX_DEVICES: usize = 4096;

/// A device that can hold one stage.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSpec {
    /// Such as `cpu` or `gpu3`.
    pub name: String,
    /// Where it is: devices of one host have quick links.
    pub host: String,
    /// Bytes that may be used: what is free, less a margin for everything that is not planned here.
    pub memory_bytes: u64,
    /// The memory is what the host has free, for all its devices that say so; [`Cluster::new`] divides it among them.
    pub shares_memory: bool,
    /// Threads that compute; 1 for a device that has its own way of computing.
    pub threads: usize,
    /// How fast it is; `None` if not known, which counts as no faster than any other.
    pub speed: Option<Speed>,
}

/// How fast a device is in steps of a model, all its threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Bytes per second that it reads in decode.
    pub read: f64,
    /// Multiply-adds per second that it makes in prefill.
    pub products: f64,
    /// Seconds per step besides.
    pub step_overhead: f64,
}

impl Speed {
    /// A device that reads and multiplies so much, with the usual [`STEP_OVERHEAD`].
    pub fn new(read: f64, products: f64) -> Self {
        Self { read, products, step_overhead: STEP_OVERHEAD }
    }

    /// Whether these are numbers of a device that exists.
    fn is_sound(&self) -> bool {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        positive(self.read) && positive(self.products) && self.step_overhead.is_finite() && self.step_overhead >= 0.0
    }
}

/// How fast a link carries frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpeed {
    /// There and back.
    pub round_trip: Duration,
    /// Bytes per second in one direction.
    pub bytes_per_second: f64,
}

impl LinkSpeed {
    /// Between processes of one host: what a Unix socket was measured to do under load.
    pub const WITHIN_HOST: Self = Self { round_trip: Duration::from_micros(30), bytes_per_second: 4e9 };
    /// Between hosts: an ordinary network of 1 Gb/s.
    pub const BETWEEN_HOSTS: Self = Self { round_trip: Duration::from_micros(300), bytes_per_second: 117e6 };

    /// Seconds until the last of so many bytes has arrived.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.round_trip.as_secs_f64() / 2.0 + self.transfer(bytes)
    }

    /// Seconds that the link is busy with so many bytes.
    pub fn transfer(&self, bytes: f64) -> f64 {
        bytes / self.bytes_per_second
    }
}

/// Every process that computes with a host's cores sees all that is free as its own; together they have it once. One
/// that started later sees less, so the most that any saw is what there is.
fn share_of_memory(device: &DeviceSpec, devices: &[DeviceSpec]) -> u64 {
    if !device.shares_memory {
        return device.memory_bytes;
    }
    let sharing = devices.iter().filter(|other| other.shares_memory && other.host == device.host);
    let (count, most) = sharing.fold((0, 0), |(count, most), other| (count + 1, other.memory_bytes.max(most)));
    most / count
}

/// Processes with as many threads on the cores of one host are equally fast; if one measured less, others were at work
/// while it did.
fn speed_of_alike(device: &DeviceSpec, devices: &[DeviceSpec]) -> Option<Speed> {
    if device.name != CPU {
        return device.speed;
    }
    let alike =
        |other: &&DeviceSpec| other.name == CPU && (&other.host, other.threads) == (&device.host, device.threads);
    let speeds = devices.iter().filter(alike).filter_map(|other| other.speed);
    speeds.max_by(|one, other| one.read.total_cmp(&other.read))
}

/// All devices that a model may be placed on, and how they are connected.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// The devices; their numbers are their places here.
    pub devices: Vec<DeviceSpec>,
    /// Links between devices of one host.
    pub within_host: LinkSpeed,
    /// Links between devices of different hosts.
    pub between_hosts: LinkSpeed,
    /// Links that were measured, by the numbers of the device that sends and of the one that receives.
    pub measured: BTreeMap<(usize, usize), LinkSpeed>,
}

impl Cluster {
    /// Devices with the usual links.
    pub fn new(mut devices: Vec<DeviceSpec>) -> Self {
        let whole = devices.clone();
        for device in &mut devices {
            device.memory_bytes = share_of_memory(device, &whole);
            device.speed = speed_of_alike(device, &whole);
        }
        Self {
            devices,
            within_host: LinkSpeed::WITHIN_HOST,
            between_hosts: LinkSpeed::BETWEEN_HOSTS,
            measured: BTreeMap::new(),
        }
    }

    /// The link from one device to another, by their numbers.
    pub fn link(&self, from: usize, to: usize) -> LinkSpeed {
        let usual =
            if self.devices[from].host == self.devices[to].host { self.within_host } else { self.between_hosts };
        self.measured.get(&(from, to)).copied().unwrap_or(usual)
    }

    /// Bytes of all devices.
    pub fn memory_bytes(&self) -> u64 {
        self.devices.iter().fold(0, |sum, device| sum.saturating_add(device.memory_bytes))
    }

    /// Checks what came from outside.
    ///
    /// # Errors
    /// No devices or too many, threads or speeds that cannot be, links between devices that are not there.
    pub(super) fn check(&self) -> Result<()> {
        if !(1..=MAX_DEVICES).contains(&self.devices.len()) {
            return Err(Error::Devices { count: self.devices.len(), limit: MAX_DEVICES });
        }
        for device in &self.devices {
            let DeviceSpec { name, host, threads, speed, .. } = device;
            if !(1..=MAX_THREADS).contains(threads) {
                return Err(Error::DeviceThreads { device: place_name(name, host), threads: *threads });
            }
            if let Some(speed) = speed.filter(|speed| !speed.is_sound()) {
                return Err(Error::Speed { device: place_name(name, host), speed });
            }
        }
        let devices = self.devices.len();
        if let Some(&(from, to)) = self.measured.keys().find(|(from, to)| *from.max(to) >= devices) {
            return Err(Error::LinkOfNobody { from, to, devices });
        }
        let links = [self.within_host, self.between_hosts].into_iter().chain(self.measured.values().copied());
        for link in links {
            if !(link.bytes_per_second.is_finite() && link.bytes_per_second > 0.0) {
                return Err(Error::Link { bytes_per_second: link.bytes_per_second });
            }
        }
        Ok(())
    }
}

/// A device as people call it.
pub(super) fn place_name(name: &str, host: &str) -> String {
    if host.is_empty() { name.to_owned() } else { format!("{name} of {host}") }
}

/// A number above 0 that people write.
pub(super) fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|number: &f64| is_plain && number.is_finite() && *number > 0.0)
}
