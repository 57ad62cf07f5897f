//! Runs of blocks for devices in a given order: the row whose slowest part is as fast as possible, and of several such
//! rows the one that serves one user fastest.
//!
//! Both are found by the same dynamic program. The best row that ends with block `end` on the device at `place` is, for
//! some `start`, the best row that ends with block `start` on some device before it, a link, and the run
//! `start..end`. Devices that no row uses are skipped. The first pass minimizes the slowest part; the second minimizes
//! the time of one user's token among rows without any slower part.

use super::{Cluster, Speed, segments::Segments};

/// How much one user's token may take longer, of a slowest stage's time, for stages that are more even.
const EVENNESS: f64 = 1e-4;

/// What rows are made of.
pub(super) struct Parts<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) segments: &'a Segments,
    /// Of every device.
    pub(super) speeds: &'a [Speed],
    /// Bytes that a stage sends to the next, while a group does its load.
    pub(super) load_bytes: f64,
    /// Bytes of a row.
    pub(super) row_bytes: f64,
    /// Exactly so many stages.
    pub(super) stages: Option<usize>,
}

/// A run of blocks on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Assigned {
    /// Its number in the cluster.
    pub(super) device: usize,
    /// The first block, and the one behind the last.
    pub(super) blocks: (usize, usize),
}

/// A row of stages.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// Seconds that the slowest stage or link works while a group does its load.
    pub(super) bottleneck: f64,
    /// What the second pass minimizes.
    pub(super) latency: f64,
    pub(super) stages: Vec<Assigned>,
}

/// What a pass minimizes.
#[derive(Debug, Clone, Copy)]
enum Goal {
    /// The slowest part.
    Bottleneck,
    /// One user's time, without any part slower than this.
    Latency { limit: f64 },
}

/// A row that ends at some block on some device.
#[derive(Debug, Clone, Copy)]
struct Cell {
    value: f64,
    /// Where the last run starts.
    start: u32,
    /// The place of the device before it.
    before: u32,
}

const NONE: Cell = Cell { value: f64::INFINITY, start: 0, before: 0 };

/// The slowest part that no row of devices in this order can do without.
pub(super) fn least_bottleneck(parts: &Parts<'_>, order: &[usize]) -> Option<f64> {
    let pass = Pass::run(parts, order, Goal::Bottleneck);
    pass.best().map(|(_, cell)| cell.value)
}

/// The row for one user, without any part slower than `limit`.
pub(super) fn quickest_row(parts: &Parts<'_>, order: &[usize], limit: f64) -> Option<Row> {
    let pass = Pass::run(parts, order, Goal::Latency { limit });
    let (place, cell) = pass.best()?;
    let stages = pass.read_back(place);
    Some(Row { bottleneck: slowest(parts, &stages), latency: cell.value, stages })
}

/// Seconds that the slowest stage or link of a row works while a group does its load.
pub(super) fn slowest(parts: &Parts<'_>, stages: &[Assigned]) -> f64 {
    let own = stages.iter().map(|stage| parts.load(stage));
    let links = stages.windows(2).map(|pair| parts.link_load(pair[0].device, pair[1].device));
    own.chain(links).fold(0.0, f64::max)
}

impl Parts<'_> {
    pub(super) fn load(&self, stage: &Assigned) -> f64 {
        self.segments.load(stage.blocks.0, stage.blocks.1, &self.speeds[stage.device])
    }

    pub(super) fn link_load(&self, from: usize, to: usize) -> f64 {
        self.cluster.link(from, to).transfer(self.load_bytes)
    }

    fn link_latency(&self, from: usize, to: usize) -> f64 {
        self.cluster.link(from, to).seconds(self.row_bytes)
    }
}

/// What a link adds to a row.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// Seconds that it is busy while a group does its load.
    load: f64,
    /// Seconds that one user's row takes over it.
    latency: f64,
}

/// One pass over all devices in order.
struct Pass<'a> {
    parts: &'a Parts<'a>,
    order: &'a [usize],
    goal: Goal,
    /// By stages so far (one layer only, if any number will do), place of the last device, and block behind its last.
    layers: Vec<Vec<Cell>>,
}

impl<'a> Pass<'a> {
    fn run(parts: &'a Parts<'a>, order: &'a [usize], goal: Goal) -> Self {
        let cells = vec![NONE; order.len() * (parts.segments.len() + 1)];
        let mut pass = Self { parts, order, goal, layers: vec![cells; parts.stages.unwrap_or(1)] };
        for layer in 0..pass.layers.len() {
            pass.fill(layer);
        }
        pass
    }

    /// Finds the rows of so many stages; or, if any number will do, all.
    fn fill(&mut self, layer: usize) {
        let exact = self.parts.stages.is_some();
        let earlier = if exact { layer.checked_sub(1) } else { Some(layer) };
        let mut before = Before::new(self.parts.segments.len());
        for place in 0..self.order.len() {
            let mut entries = match earlier {
                Some(earlier) => before.entries(self, earlier, place),
                None => vec![NONE; self.parts.segments.len() + 1],
            };
            if !exact || layer == 0 {
                entries[0] = Cell { value: 0.0, ..NONE };
            }
            for end in 1..=self.parts.segments.len() {
                let cell = self.best_run(place, end, &entries);
                let index = self.index(place, end);
                self.layers[layer][index] = cell;
            }
        }
    }

    /// The best last run of a row that ends before block `end`.
    fn best_run(&self, place: usize, end: usize, entries: &[Cell]) -> Cell {
        let Parts { segments, cluster, speeds, .. } = self.parts;
        let (device, speed) = (self.order[place], &speeds[self.order[place]]);
        let mut best = NONE;
        for start in (0..end).rev() {
            let load = segments.load(start, end, speed);
            // Runs only grow from here on.
            if load > self.limit() || load >= best.value && matches!(self.goal, Goal::Bottleneck) {
                break;
            }
            if entries[start].value.is_infinite() || segments.memory(start, end) > cluster.devices[device].memory_bytes
            {
                continue;
            }
            let value = match self.goal {
                Goal::Bottleneck => load.max(entries[start].value),
                Goal::Latency { limit } => {
                    let alone = segments.alone(start, end, speed);
                    let uneven = if limit.is_finite() { EVENNESS * alone * load / limit } else { 0.0 };
                    entries[start].value + alone + uneven
                }
            };
            if value < best.value {
                best = Cell { value, start: start as u32, before: entries[start].before };
            }
        }
        best
    }

    fn limit(&self) -> f64 {
        match self.goal {
            Goal::Bottleneck => f64::INFINITY,
            Goal::Latency { limit } => limit,
        }
    }

    /// A row's value behind a link.
    fn behind(&self, value: f64, link: Link) -> f64 {
        match self.goal {
            Goal::Bottleneck => value.max(link.load),
            Goal::Latency { limit } if link.load > limit => f64::INFINITY,
            Goal::Latency { .. } => value + link.latency,
        }
    }

    fn link(&self, from: usize, to: usize) -> Link {
        let (from, to) = (self.order[from], self.order[to]);
        Link { load: self.parts.link_load(from, to), latency: self.parts.link_latency(from, to) }
    }

    /// The best row of all blocks, and the place of its last device.
    fn best(&self) -> Option<(usize, Cell)> {
        let last = self.layers.last()?;
        let end = self.parts.segments.len();
        let rows = (0..self.order.len()).map(|place| (place, last[self.index(place, end)]));
        let best = rows.min_by(|(_, one), (_, other)| one.value.total_cmp(&other.value));
        best.filter(|(_, cell)| cell.value.is_finite())
    }

    fn read_back(&self, mut place: usize) -> Vec<Assigned> {
        let mut stages = Vec::new();
        let (mut layer, mut end) = (self.layers.len() - 1, self.parts.segments.len());
        while end > 0 {
            let cell = self.layers[layer][self.index(place, end)];
            let start = cell.start as usize;
            stages.push(Assigned { device: self.order[place], blocks: (start, end) });
            (place, end) = (cell.before as usize, start);
            layer = if self.parts.stages.is_some() { layer.saturating_sub(1) } else { layer };
        }
        stages.reverse();
        stages
    }

    fn index(&self, place: usize, end: usize) -> usize {
        place * (self.parts.segments.len() + 1) + end
    }
}

/// The best rows that end before a place, as the link to it makes them. All links within a host are alike, and so are
/// all between hosts, unless some were measured: then every pair is looked at.
struct Before {
    same_host: Vec<Cell>,
    other_hosts: Vec<Cell>,
}

impl Before {
    fn new(blocks: usize) -> Self {
        Self { same_host: vec![NONE; blocks + 1], other_hosts: vec![NONE; blocks + 1] }
    }

    /// For each block, the best row of `layer` that ends there on a device before `place`. Places come in order.
    fn entries(&mut self, pass: &Pass<'_>, layer: usize, place: usize) -> Vec<Cell> {
        let Some(last) = place.checked_sub(1) else { return self.same_host.clone() };
        let (cells, blocks) = (&pass.layers[layer], pass.parts.segments.len());
        let mut entries = vec![NONE; blocks + 1];
        if !pass.parts.cluster.measured.is_empty() {
            for from in 0..place {
                let link = pass.link(from, place);
                for (end, entry) in entries.iter_mut().enumerate() {
                    keep_better(entry, pass.behind(cells[pass.index(from, end)].value, link), from);
                }
            }
            return entries;
        }
        for (end, same) in self.same_host.iter_mut().enumerate() {
            keep_better(same, cells[pass.index(last, end)].value, last);
        }
        let host = |at: usize| &pass.parts.cluster.devices[pass.order[at]].host;
        if host(last) != host(place) {
            for (other, same) in self.other_hosts.iter_mut().zip(&mut self.same_host) {
                keep_better(other, same.value, same.before as usize);
                *same = NONE;
            }
        }
        for rows in [&self.same_host, &self.other_hosts] {
            for (entry, row) in entries.iter_mut().zip(rows).filter(|(_, row)| row.value.is_finite()) {
                let from = row.before as usize;
                keep_better(entry, pass.behind(row.value, pass.link(from, place)), from);
            }
        }
        entries
    }
}

fn keep_better(kept: &mut Cell, value: f64, place: usize) {
    if value < kept.value {
        *kept = Cell { value, before: place as u32, ..NONE };
    }
}
