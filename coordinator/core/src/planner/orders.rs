//! In which orders devices may stand in the row.

use std::collections::HashSet;

use super::{Cluster, DeviceSpec};

/// About how many pieces of work all orders together may cost: some ten milliseconds.
const BUDGET: usize = 2_000_000;
/// Orders that are tried however large the cluster is.
const LEAST: usize = 2;
/// Orders that are tried however small it is.
const MOST: usize = 400;

/// Orders of the devices, each a list of their numbers; devices of one host stay together.
///
/// First as given, then by speed and by memory in both directions, then all others as long as work is left for them.
/// Orders that differ only by devices that are alike count once.
pub(super) fn orders(cluster: &Cluster, blocks: usize, stages: Option<usize>) -> Vec<Vec<usize>> {
    // An exact number of stages takes as many passes.
    let cost = [cluster.devices.len(), blocks, blocks, stages.unwrap_or(1)].into_iter().fold(1, usize::saturating_mul);
    let most = (BUDGET / cost.max(1)).clamp(LEAST, MOST);
    let kinds = kinds(cluster);
    let hosts = hosts(cluster);
    let mut found = Found { cluster, kinds: &kinds, seen: HashSet::new(), orders: Vec::new(), most };
    found.add(&hosts.concat());
    let memory = |index: usize| cluster.devices[index].memory_bytes as f64;
    let read = |index: usize| cluster.devices[index].speed.map_or(0.0, |speed| speed.read);
    for (key, sign) in [(&read as &dyn Fn(usize) -> f64, -1.0), (&read, 1.0), (&memory, -1.0), (&memory, 1.0)] {
        found.add(&sorted(&hosts, |index| sign * key(index)));
    }
    found.extend(&mut Vec::new(), &[], &hosts);
    found.orders
}

/// Devices that may stand for each other have the same number here. Where links were measured, no two do.
fn kinds(cluster: &Cluster) -> Vec<usize> {
    let alike = |one: &DeviceSpec, other: &DeviceSpec| {
        (one.memory_bytes, one.speed, one.threads) == (other.memory_bytes, other.speed, other.threads)
    };
    let kind = |(index, device): (usize, &DeviceSpec)| {
        let first = cluster.devices.iter().position(|other| alike(other, device)).unwrap_or(index);
        if cluster.measured.is_empty() { first } else { index }
    };
    cluster.devices.iter().enumerate().map(kind).collect()
}

/// The devices of each host, hosts in the order in which they first appear.
fn hosts(cluster: &Cluster) -> Vec<Vec<usize>> {
    let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
    for (index, device) in cluster.devices.iter().enumerate() {
        match hosts.iter_mut().find(|(name, _)| *name == device.host) {
            Some((_, devices)) => devices.push(index),
            None => hosts.push((&device.host, vec![index])),
        }
    }
    hosts.into_iter().map(|(_, devices)| devices).collect()
}

/// Devices of a host by a key, and hosts by the least of theirs.
fn sorted(hosts: &[Vec<usize>], key: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut hosts = hosts.to_vec();
    for devices in &mut hosts {
        devices.sort_by(|&one, &other| key(one).total_cmp(&key(other)));
    }
    hosts.sort_by(|one, other| key(one[0]).total_cmp(&key(other[0])));
    hosts.concat()
}

/// The orders so far.
struct Found<'a> {
    cluster: &'a Cluster,
    kinds: &'a [usize],
    seen: HashSet<Vec<(usize, bool)>>,
    orders: Vec<Vec<usize>>,
    most: usize,
}

impl Found<'_> {
    fn is_full(&self) -> bool {
        self.orders.len() >= self.most
    }

    /// Keeps an order that differs from all others in the kinds of its devices or in where hosts begin.
    fn add(&mut self, order: &[usize]) {
        let host = |at: usize| &self.cluster.devices[order[at]].host;
        let begins = |at: usize| at == 0 || host(at) != host(at - 1);
        let key = order.iter().enumerate().map(|(at, &index)| (self.kinds[index], begins(at))).collect();
        if !self.is_full() && self.seen.insert(key) {
            self.orders.push(order.to_vec());
        }
    }

    fn kinds_of(&self, devices: &[usize]) -> Vec<usize> {
        let mut kinds: Vec<usize> = devices.iter().map(|&index| self.kinds[index]).collect();
        kinds.sort_unstable();
        kinds
    }

    /// Adds every order that begins with `begun`, then has the other devices of its last host, then the other hosts.
    fn extend(&mut self, begun: &mut Vec<usize>, host: &[usize], others: &[Vec<usize>]) {
        if self.is_full() {
            return;
        }
        let mut tried = HashSet::new();
        if !host.is_empty() {
            for (at, &device) in host.iter().enumerate() {
                if tried.insert(vec![self.kinds[device]]) {
                    begun.push(device);
                    self.extend(begun, &without(host, at), others);
                    begun.pop();
                }
            }
        } else if others.is_empty() {
            self.add(begun);
        } else {
            for (at, next) in others.iter().enumerate() {
                if tried.insert(self.kinds_of(next)) {
                    self.extend(begun, next, &without(others, at));
                }
            }
        }
    }
}

fn without<T: Clone>(all: &[T], at: usize) -> Vec<T> {
    [&all[..at], &all[at + 1..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(devices: &[(&str, u64)]) -> Cluster {
        let device = |&(host, memory_bytes): &(&str, u64)| DeviceSpec {
            name: "gpu".to_owned(),
            host: host.to_owned(),
            memory_bytes,
            shares_memory: false,
            threads: 1,
            speed: None,
        };
        Cluster::new(devices.iter().map(device).collect())
    }

    #[test]
    fn equal_devices_have_one_order() {
        assert_eq!(orders(&cluster(&[("a", 1); 8]), 16, None), [[0, 1, 2, 3, 4, 5, 6, 7]]);
        assert_eq!(orders(&cluster(&[("a", 1), ("b", 1), ("c", 1)]), 16, None), [[0, 1, 2]]);
    }

    #[test]
    fn all_orders_of_few_devices_are_tried() {
        assert_eq!(orders(&cluster(&[("a", 1), ("a", 2), ("a", 3)]), 4, None).len(), 6);
        // One of a host of two stands first or last, in either direction.
        let mut found = orders(&cluster(&[("a", 1), ("b", 2), ("a", 3)]), 4, None);
        found.sort();
        assert_eq!(found, [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1]]);
    }

    #[test]
    fn many_devices_have_few_orders() {
        let names: Vec<String> = (0..64).map(|host| format!("host{host}")).collect();
        let devices: Vec<(&str, u64)> =
            (0..512).map(|index| (names[index / 8].as_str(), 1 + index as u64 % 7)).collect();
        let found = orders(&cluster(&devices), 80, None);
        assert_eq!(found.len(), LEAST);
        for order in found {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..512));
        }
    }
}
