//! Devices and links as people describe them: `8x 24GiB 1008GB/s`, `cpu 64GiB 40GB/s 8threads @hostb`, `10Gb/s 100us`.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

use super::{Cluster, DeviceSpec, LinkSpeed, MAX_DEVICES, MAX_THREADS, Speed, device::number};

/// What kernels reach of the bandwidth that a data sheet promises.
const READ_SHARE: f64 = 0.75;
/// What kernels reach of the products that a data sheet promises.
const PRODUCTS_SHARE: f64 = 0.4;
/// Multiply-adds per byte of bandwidth, if only the bandwidth is known: as cards of the last years have them.
const GPU_PRODUCTS_PER_BYTE: f64 = 64.0;
/// The same of processors with dot products of bytes.
const CPU_PRODUCTS_PER_BYTE: f64 = 16.0;
/// No device has more.
const MOST_BYTES: f64 = (1u64 << 60) as f64;

const DEVICE_WORDS: &str = "a count such as 8x, cpu or gpu, memory such as 24GiB, bandwidth such as 1008GB/s, products such \
                            as 112TOPS, 56TMAC/s or 112TFLOPS, threads such as 8threads and a host such as @hostb are \
                            understood";
const LINK_WORDS: &str = "a rate such as 10Gb/s or 1.2GB/s and a round trip such as 100us or 0.3ms are understood";

/// A description that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// A word that is wrong.
    #[error("{word:?} in {text:?}: {problem}; {understood}")]
    Word {
        /// Which.
        word: String,
        /// Of which description.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
        /// What would be right.
        understood: &'static str,
    },
    /// Something that must be there and is not.
    #[error("{text:?} has no {missing}; {understood}")]
    Missing {
        /// The description.
        text: String,
        /// What.
        missing: &'static str,
        /// What would be right.
        understood: &'static str,
    },
}

/// Some devices that are alike.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceGroup {
    /// How many.
    pub count: usize,
    /// Each of them.
    pub device: DeviceSpec,
    /// What was assumed besides the description.
    pub assumed: Option<String>,
}

impl Cluster {
    /// Described devices with the usual links. Devices of one name on a host are numbered.
    pub fn described(groups: &[DeviceGroup]) -> Self {
        let name = |group: &DeviceGroup| (group.device.host.clone(), group.device.name.clone());
        let mut of_name: HashMap<(String, String), usize> = HashMap::new();
        for group in groups {
            *of_name.entry(name(group)).or_default() += group.count;
        }
        let mut numbers: HashMap<(String, String), usize> = HashMap::new();
        let mut devices = Vec::new();
        for group in groups {
            let is_alone = of_name[&name(group)] == 1;
            let next = numbers.entry(name(group)).or_default();
            for _ in 0..group.count {
                let number = if is_alone { String::new() } else { next.to_string() };
                devices.push(DeviceSpec { name: format!("{}{number}", group.device.name), ..group.device.clone() });
                *next += 1;
            }
        }
        Self::new(devices)
    }
}

impl FromStr for DeviceGroup {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Self, DescriptionError> {
        let mut found = Found::default();
        for word in words(text) {
            found.add(&word).map_err(|problem| DescriptionError::Word {
                word,
                text: text.to_owned(),
                problem,
                understood: DEVICE_WORDS,
            })?;
        }
        let memory_bytes = found.memory.ok_or_else(|| DescriptionError::Missing {
            text: text.to_owned(),
            missing: "memory",
            understood: DEVICE_WORDS,
        })?;
        if found.products.is_some() && found.read.is_none() {
            let (text, missing) = (text.to_owned(), "bandwidth, which must be there with products");
            return Err(DescriptionError::Missing { text, missing, understood: DEVICE_WORDS });
        }
        let (speed, assumed) = found.speed();
        let name = found.name.unwrap_or("gpu").to_owned();
        let (host, threads) = (found.host.unwrap_or_default(), found.threads.unwrap_or(1));
        let device = DeviceSpec { name, host, memory_bytes, shares_memory: false, threads, speed };
        Ok(Self { count: found.count.unwrap_or(1), device, assumed })
    }
}

/// What the words of a description say.
#[derive(Default)]
struct Found {
    count: Option<usize>,
    name: Option<&'static str>,
    memory: Option<u64>,
    read: Option<f64>,
    products: Option<f64>,
    threads: Option<usize>,
    host: Option<String>,
}

impl Found {
    fn add(&mut self, word: &str) -> Result<(), &'static str> {
        if let Some(host) = word.strip_prefix('@') {
            return set(&mut self.host, host_name(host)?);
        }
        match word.to_ascii_lowercase().as_str() {
            "cpu" => return set(&mut self.name, "cpu"),
            "gpu" | "cuda" => return set(&mut self.name, "gpu"),
            _ => {}
        }
        let (number, unit) = quantity(word)?;
        let lower = unit.to_ascii_lowercase();
        if lower == "x" {
            return set(&mut self.count, whole(number, MAX_DEVICES)?);
        }
        if matches!(lower.as_str(), "thread" | "threads" | "core" | "cores") {
            return set(&mut self.threads, whole(number, MAX_THREADS)?);
        }
        if let Some(bytes) = byte_unit(&lower) {
            let bytes = number * bytes;
            if !(1.0..=MOST_BYTES).contains(&bytes) {
                return Err("no device has so much memory");
            }
            return set(&mut self.memory, bytes as u64);
        }
        if let Some(bytes) = lower.strip_suffix("/s").and_then(byte_unit) {
            return set(&mut self.read, number * bytes);
        }
        let products = product_unit(&lower).ok_or("the unit is not known")?;
        set(&mut self.products, number * products)
    }

    fn speed(&self) -> (Option<Speed>, Option<String>) {
        let Some(read) = self.read else { return (None, None) };
        let per_byte = if self.name == Some("cpu") { CPU_PRODUCTS_PER_BYTE } else { GPU_PRODUCTS_PER_BYTE };
        let products = self.products.unwrap_or(read * per_byte);
        let reached = format!(
            "{:.0}% of the described bandwidth and {:.0}% of the products are reckoned with",
            READ_SHARE * 100.0,
            PRODUCTS_SHARE * 100.0
        );
        let assumed = match self.products {
            Some(_) => reached,
            None => format!("{reached}; none were described, {:.1} TMAC/s are assumed", products / 1e12),
        };
        (Some(Speed::new(read * READ_SHARE, products * PRODUCTS_SHARE)), Some(assumed))
    }
}

/// A round trip and a rate; what is not said is as between hosts.
impl FromStr for LinkSpeed {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Self, DescriptionError> {
        let (mut rate, mut round_trip) = (None, None);
        for word in words(text) {
            add_to_link(&mut rate, &mut round_trip, &word).map_err(|problem| DescriptionError::Word {
                word,
                text: text.to_owned(),
                problem,
                understood: LINK_WORDS,
            })?;
        }
        if rate.is_none() && round_trip.is_none() {
            let (text, missing) = (text.to_owned(), "rate and no round trip");
            return Err(DescriptionError::Missing { text, missing, understood: LINK_WORDS });
        }
        let usual = Self::BETWEEN_HOSTS;
        Ok(Self {
            round_trip: round_trip.unwrap_or(usual.round_trip),
            bytes_per_second: rate.unwrap_or(usual.bytes_per_second),
        })
    }
}

fn add_to_link(rate: &mut Option<f64>, round_trip: &mut Option<Duration>, word: &str) -> Result<(), &'static str> {
    let (number, unit) = quantity(word)?;
    let seconds = match unit {
        "us" | "µs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        _ => None,
    };
    if let Some(seconds) = seconds.map(|seconds| number * seconds) {
        if seconds > 3600.0 {
            return Err("no link takes so long");
        }
        return set(round_trip, Duration::from_secs_f64(seconds));
    }
    // Here a small b is a bit and a large one is a byte.
    let bytes = match unit {
        "Mb/s" | "Mbit/s" => 125e3,
        "Gb/s" | "Gbit/s" => 125e6,
        "MB/s" => 1e6,
        "GB/s" => 1e9,
        _ => return Err("the unit is not known"),
    };
    set(rate, number * bytes)
}

/// The words of a text; a number alone belongs to the word behind it, and a count may stick to the word behind it.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    for word in text.split_whitespace() {
        match words.last_mut() {
            Some(last) if is_number(last) && !word.starts_with('@') => last.push_str(word),
            _ => words.push(word.to_owned()),
        }
    }
    words.into_iter().flat_map(split_count).collect()
}

fn split_count(word: String) -> Vec<String> {
    match word.split_once(['x', 'X']) {
        Some((count, rest))
            if !rest.is_empty() && !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            vec![format!("{count}x"), rest.to_owned()]
        }
        _ => vec![word],
    }
}

fn quantity(word: &str) -> Result<(f64, &str), &'static str> {
    let unit = word.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(word.len());
    let number = number(&word[..unit]).ok_or("it is no number above 0 with a unit")?;
    if unit == word.len() { Err("it has no unit") } else { Ok((number, &word[unit..])) }
}

fn whole(number: f64, most: usize) -> Result<usize, &'static str> {
    if number.fract() == 0.0 && number <= most as f64 { Ok(number as usize) } else { Err("there cannot be so many") }
}

fn host_name(name: &str) -> Result<String, &'static str> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_.:".contains(char);
    if name.is_empty() || name.len() > 255 || !name.chars().all(is_plain) {
        return Err("a host's name has letters, digits, and any of -_.:");
    }
    Ok(name.to_owned())
}

fn set<T>(place: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err("there is one already"),
    }
}

fn byte_unit(unit: &str) -> Option<f64> {
    Some(match unit {
        "mib" => f64::from(1 << 20),
        "gib" => f64::from(1 << 30),
        "tib" => (1u64 << 40) as f64,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return None,
    })
}

/// Multiply-adds per second; two operations are one.
fn product_unit(unit: &str) -> Option<f64> {
    Some(match unit {
        "gmac/s" => 1e9,
        "tmac/s" => 1e12,
        "gops" | "gflops" => 0.5e9,
        "tops" | "tflops" => 0.5e12,
        _ => return None,
    })
}
