//! Placing on random devices, against every row that there is.

use std::time::Duration;

use proptest::prelude::*;

use super::super::assign::{Assigned, Parts, slowest};
use super::super::{load::Steps, place::speeds, segments::Segments};
use super::clusters::{device, devices, layers, of_kind};
use super::*;

/// What `place` works with, for looking at every row by force.
struct Force {
    cluster: Cluster,
    segments: Segments,
    speeds: Vec<Speed>,
    load_bytes: f64,
}

impl Force {
    fn new(shape: &ModelShape, wishes: &Wishes, cluster: &Cluster) -> Self {
        let stages = wishes.shards.unwrap_or(cluster.devices.len().min(shape.blocks().len()));
        let steps = Steps::of(&wishes.load(), wishes, stages);
        let rows = |step: &StepShape| (shape.hidden_row_bytes() as usize * step.rows) as f64;
        Self {
            cluster: cluster.clone(),
            segments: Segments::new(shape, wishes, &steps).unwrap(),
            speeds: speeds(&cluster.devices),
            load_bytes: steps.decode_steps * rows(&steps.decode) + steps.prefill_steps * rows(&steps.prefill),
        }
    }

    fn parts(&self) -> Parts<'_> {
        let Self { cluster, segments, speeds, load_bytes } = self;
        Parts { cluster, segments, speeds, load_bytes: *load_bytes, row_bytes: 0.0, stages: None }
    }

    /// The least bottleneck of all rows that fit: every choice and order of devices that keeps hosts together, every cut.
    fn least(&self, exactly: Option<usize>) -> Option<f64> {
        let mut least = f64::INFINITY;
        self.extend(&mut Vec::new(), exactly, &mut least);
        Some(least).filter(|least| least.is_finite())
    }

    fn extend(&self, row: &mut Vec<Assigned>, exactly: Option<usize>, least: &mut f64) {
        let start = row.last().map_or(0, |stage| stage.blocks.1);
        if start == self.segments.len() && exactly.is_none_or(|count| count == row.len()) {
            *least = least.min(slowest(&self.parts(), row));
        }
        for device in 0..self.cluster.devices.len() {
            if row.iter().any(|stage| stage.device == device) || !self.keeps_hosts_together(row, device) {
                continue;
            }
            for end in start + 1..=self.segments.len() {
                if self.segments.memory(start, end) <= self.cluster.devices[device].memory_bytes {
                    row.push(Assigned { device, blocks: (start, end) });
                    self.extend(row, exactly, least);
                    row.pop();
                }
            }
        }
    }

    fn keeps_hosts_together(&self, row: &[Assigned], device: usize) -> bool {
        let host = |device: usize| &self.cluster.devices[device].host;
        let seen = row.iter().any(|stage| host(stage.device) == host(device));
        !seen || row.last().is_some_and(|stage| host(stage.device) == host(device))
    }
}

fn any_device() -> impl Strategy<Value = DeviceSpec> {
    let speed = prop::option::weighted(0.8, (1u32..20, 1u32..20));
    let hosts = prop_oneof![Just("a"), Just("a"), Just("b"), Just("c")];
    (hosts, prop_oneof![0u64..300_000, 0u64..3_000_000, 0u64..30_000_000], speed).prop_map(
        |(host, beyond_scratch, speed)| {
            let speed = speed.map(|(read, products)| Speed {
                read: f64::from(read) * 1e6,
                products: f64::from(products) * 1e9,
                step_overhead: 1e-5,
            });
            device(host, SCRATCH_BYTES + beyond_scratch, speed)
        },
    )
}

prop_compose! {
    fn any_cluster(most: usize)(
        devices in prop::collection::vec(any_device(), 1..=most),
        round_trips in (1u64..50, 1u64..5000),
        rates in (1u32..100, 1u32..100),
        link in prop::option::weighted(0.3, (0usize..4, 0usize..4, 1u64..100_000, 1u32..100)),
    ) -> Cluster {
        let link_speed = |round_trip, rate: u32| LinkSpeed {
            round_trip: Duration::from_micros(round_trip),
            bytes_per_second: f64::from(rate) * 1e6,
        };
        let count = devices.len();
        let measured = link.map(|(from, to, round_trip, rate)| ((from % count, to % count), link_speed(round_trip, rate)));
        Cluster {
            within_host: link_speed(round_trips.0, rates.0),
            between_hosts: link_speed(round_trips.1, rates.1),
            measured: measured.into_iter().collect(),
            ..Cluster::new(devices)
        }
    }
}

prop_compose! {
    fn cluster_wishes()(
        shards in prop::option::weighted(0.4, 1usize..5),
        context in 1usize..500,
        sessions in 1usize..6,
        quantized in any::<bool>(),
        one_user in any::<bool>(),
        page_tokens in 1usize..100,
        step_rows in 1usize..20,
    ) -> Wishes {
        let kind = if quantized { KvType::Q8_0 } else { KvType::F16 };
        let prefer = if one_user { Prefer::OneUser } else { Prefer::Row };
        Wishes { shards, page_tokens, step_rows, prefer, ..of_kind(kind, context, sessions) }
    }
}

fn bottleneck_of(force: &Force, shape: &ModelShape, placement: &Placement) -> f64 {
    let blocks = shape.blocks();
    let at = |layer: usize| blocks.iter().position(|block| block.start == layer).unwrap_or(blocks.len());
    let row: Vec<Assigned> = placement
        .stages
        .iter()
        .map(|stage| Assigned { device: stage.device, blocks: (at(stage.layers.start), at(stage.layers.end)) })
        .collect();
    slowest(&force.parts(), &row)
}

fn is_about(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.max(other)
}

proptest! {
    #[test]
    fn a_placement_is_a_cut_that_fits_with_the_least_bottleneck(
        shape in any_shape(),
        wishes in cluster_wishes(),
        cluster in any_cluster(4),
    ) {
        let blocks = shape.blocks();
        prop_assume!(blocks.len() <= 6);
        let force = Force::new(&shape, &wishes, &cluster);
        match place(&shape, &wishes, &cluster) {
            Ok(placement) => {
                let stages = layers(&placement);
                prop_assert!(all_cuts(&blocks, stages.len()).contains(&stages));
                prop_assert!(wishes.shards.is_none_or(|shards| shards == stages.len()));
                let mut used = devices(&placement);
                for stage in &placement.stages {
                    prop_assert!(stage.memory.total() <= cluster.devices[stage.device].memory_bytes);
                }
                used.extend(placement.left_out.iter().map(|left| left.device));
                used.sort_unstable();
                prop_assert_eq!(used, (0..cluster.devices.len()).collect::<Vec<_>>());
                let (found, least) = (bottleneck_of(&force, &shape, &placement), force.least(wishes.shards).unwrap());
                match wishes.prefer {
                    Prefer::Row => prop_assert!(is_about(found, least), "{} of {}", found, least),
                    Prefer::OneUser => prop_assert!(found >= least * (1.0 - 1e-9)),
                }
            }
            Err(Error::NoCutFits { would_fit, .. }) => {
                prop_assert_eq!(force.least(wishes.shards), None);
                let fits = |wishes: Wishes| place(&shape, &wishes, &cluster).is_ok();
                let context = would_fit.context.map(|context| Wishes { context, ..wishes.clone() });
                let sessions = would_fit.sessions.map(|sessions| Wishes { sessions, ..wishes.clone() });
                let kind = would_fit.key_value_type;
                let kind = kind.map(|kind| Wishes { key_type: kind, value_type: kind, ..wishes.clone() });
                prop_assert!([context, sessions, kind].into_iter().flatten().all(fits));
                if let Some(memory_bytes) = would_fit.device {
                    let mut larger = cluster.clone();
                    larger.devices.push(DeviceSpec { memory_bytes, ..cluster.devices[cluster.devices.len() - 1].clone() });
                    prop_assert!(place(&shape, &wishes, &larger).is_ok());
                }
            }
            Err(Error::TooManyShards { shards, .. }) => prop_assert!(shards > blocks.len()),
            Err(Error::TooFewDevices { shards, devices }) => prop_assert!(shards > devices),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn without_what_was_left_out_nothing_changes(shape in any_shape(), cluster in any_cluster(5)) {
        let wishes = Wishes::of(200, 1);
        let mut cluster = cluster;
        cluster.measured.clear();
        // A device whose speed is not known counts as the slowest of the others, which may be gone.
        for device in &mut cluster.devices {
            device.speed.get_or_insert(Speed { read: 3e6, products: 3e9, step_overhead: 1e-5 });
        }
        let Ok(placement) = place(&shape, &wishes, &cluster) else { return Ok(()) };
        let used = devices(&placement);
        let kept: Vec<usize> = (0..cluster.devices.len()).filter(|index| used.contains(index)).collect();
        let smaller = Cluster { devices: kept.iter().map(|&index| cluster.devices[index].clone()).collect(), ..cluster.clone() };
        let again = place(&shape, &wishes, &smaller).unwrap();
        let (all, few) = (Force::new(&shape, &wishes, &cluster), Force::new(&shape, &wishes, &smaller));
        prop_assert!(is_about(bottleneck_of(&all, &shape, &placement), bottleneck_of(&few, &shape, &again)));
    }

    #[test]
    fn equal_devices_may_change_places(shape in any_shape(), cluster in any_cluster(4), turn in 0usize..4) {
        let wishes = Wishes::of(200, 2);
        let mut equal = cluster;
        equal.measured.clear();
        for device in &mut equal.devices {
            device.host = "a".to_owned();
            device.memory_bytes = SCRATCH_BYTES + 4_000_000;
            device.speed = Some(Speed { read: 1e6, products: 1e9, step_overhead: 1e-5 });
        }
        let mut turned = equal.clone();
        let count = turned.devices.len();
        for (index, device) in equal.devices.iter_mut().enumerate() {
            device.name = format!("gpu{index}");
        }
        turned.devices.rotate_left(turn % count);
        match (place(&shape, &wishes, &equal), place(&shape, &wishes, &turned)) {
            (Ok(one), Ok(other)) => {
                prop_assert_eq!(layers(&one), layers(&other));
                prop_assert_eq!(one.prediction, other.prediction);
            }
            (one, other) => prop_assert!(one.is_err() && other.is_err()),
        }
    }
}
