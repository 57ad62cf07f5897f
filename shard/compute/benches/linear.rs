//! Speed of the matrix products next to what the machine's memory can deliver.
//!
//! For every type: GB/s of packed weights for 1 and 8 rows (decoding and verifying), and GMAC/s for
//! 64 and 512 rows (prefill). Arguments: `THREADS` (default 1), then names of types (default all),
//! and an instruction set.
//!
//! `cargo bench -p paceline-compute --bench linear -- 2 Q4_K Q6_K avx512`

use std::hint::{black_box, spin_loop};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use paceline_compute::blocks;
use paceline_compute::cpu::linear::{
    INPUT_BLOCK, Input, OutputRows, PackedWeight, QuantizedBlock, Rows, linear, quantize,
};
use paceline_compute::cpu::simd::{Isa, Kernel, Simd};
use paceline_gguf::TensorType;

const COLUMNS: usize = 4096;
/// Enough that no cache holds the weights.
const DECODE_BYTES: usize = 256 << 20;
const PREFILL_ROWS: usize = 2 * 1024;
/// How much is timed at once.
const MACS_PER_SLICE: usize = 16 << 20;
const REPEATS: usize = 9;

struct Settings {
    threads: usize,
    isa: Isa,
    kinds: Vec<TensorType>,
}

fn main() {
    let settings = read_arguments();
    let Settings { threads, isa, .. } = settings;
    let (memory, dots) = (memory_speed(&settings), dot_speed(&settings));
    println!("{isa}, {threads} threads, reading memory at {memory:.1} GB/s, dot products at {dots:.0} GMAC/s");
    println!("type    bits   1 row GB/s  8 rows GB/s  8/1 time  64 GMAC/s  512 GMAC/s  pack GB/s");
    for &kind in &settings.kinds {
        measure(&settings, kind);
    }
}

fn read_arguments() -> Settings {
    let mut settings = Settings { threads: 1, isa: Isa::detect(), kinds: Vec::new() };
    for argument in std::env::args().skip(1) {
        let kind = TensorType::ALL.into_iter().find(|kind| kind.name() == argument);
        if let Some(kind) = kind {
            settings.kinds.push(kind);
        } else if let Some(isa) = Isa::parse(&argument) {
            settings.isa = isa;
        } else if let Ok(threads) = argument.parse() {
            settings.threads = threads;
        }
    }
    if settings.kinds.is_empty() {
        settings.kinds = TensorType::ALL.to_vec();
    }
    settings
}

fn measure(settings: &Settings, kind: TensorType) {
    let decode_rows = DECODE_BYTES / kind.bytes_for(COLUMNS);
    let (weight, packing) = random_weight(kind, decode_rows);
    let [one, eight] = [1, 8].map(|rows| seconds(settings, &weight, rows));
    let gigabytes = weight.bytes() as f64 / 1e9;
    let bits = 8.0 * weight.bytes() as f64 / (decode_rows * COLUMNS) as f64;
    drop(weight);

    let (weight, _) = random_weight(kind, PREFILL_ROWS);
    let [few, many] = [64, 512].map(|rows| {
        let products = (rows * PREFILL_ROWS * COLUMNS) as f64;
        products / 1e9 / seconds(settings, &weight, rows)
    });
    println!(
        "{kind:7} {bits:5.2} {:12.1} {:12.1} {:9.2} {few:10.1} {many:11.1} {packing:10.2}",
        gigabytes / one,
        gigabytes / eight,
        eight / one,
    );
}

/// Random codes with scales of ordinary size, and the GB/s of packing them.
fn random_weight(kind: TensorType, rows: usize) -> (PackedWeight, f64) {
    let mut state = 1u32;
    let mut bytes = vec![0; rows * kind.bytes_for(COLUMNS)];
    bytes.fill_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Never the bits of an infinity or a NaN.
        (state >> 24) as u8 & 0x3b
    });
    let start = Instant::now();
    let weight = PackedWeight::pack(kind, rows, COLUMNS, &bytes).expect("the shape is right");
    (weight, bytes.len() as f64 / 1e9 / start.elapsed().as_secs_f64())
}

/// Time of a product by all threads, of which each takes a share of the panels.
fn seconds(settings: &Settings, weight: &PackedWeight, rows: usize) -> f64 {
    let values: Vec<f32> = (0..rows * COLUMNS).map(|i| (i % 97) as f32 - 48.0).collect();
    let mut quantized = vec![QuantizedBlock::default(); values.len() / INPUT_BLOCK];
    quantize(settings.isa, &values, &mut quantized);
    let input = if blocks::is_quantized(weight.kind()) { Input::Quantized(&quantized) } else { Input::Float(&values) };
    let (threads, panels, columns) = (settings.threads, weight.panels(), weight.rows());
    let slices = (rows * columns * COLUMNS / threads).div_ceil(MACS_PER_SLICE).min(panels / threads);
    // Every thread has an output of its own: the time is the same.
    let outputs: Vec<_> = (0..threads).map(|_| Mutex::new(vec![0.0; rows * columns])).collect();
    slowest(threads, slices, |thread, slice| {
        let own = part(panels, thread, threads);
        let due = part(own.len(), slice, slices);
        let mut products = outputs[thread].lock().expect("no thread panics");
        let mut output = OutputRows::new(&mut products, columns, false);
        let panels = own.start + due.start..own.start + due.end;
        linear(settings.isa, weight, 0, panels, input, Rows::First(rows), &mut output);
    })
}

/// GB/s of plain reading.
fn memory_speed(settings: &Settings) -> f64 {
    let values = vec![1i32; 64 << 20];
    let slices = values.len() / settings.threads / (1 << 18);
    let seconds = slowest(settings.threads, slices, |thread, slice| {
        let own = &values[part(values.len(), thread, settings.threads)];
        black_box(settings.isa.run(Sum(&own[part(own.len(), slice, slices)])));
    });
    size_of_val(values.as_slice()) as f64 / 1e9 / seconds
}

/// GMAC/s of nothing but integer dot products: what prefill cannot surpass.
fn dot_speed(settings: &Settings) -> f64 {
    const ROUNDS: usize = 1 << 16;
    let seconds = slowest(settings.threads, 4, |_, _| {
        black_box(settings.isa.run(Dots(ROUNDS)));
    });
    (settings.threads * 4 * ROUNDS * 8 * 64) as f64 / 1e9 / seconds
}

/// Does work in slices of about a millisecond that all threads begin together, all of it some times over, and sums
/// the shortest times of every slice, of which the slowest thread's counts: what a machine does that is interrupted
/// less often than that. `work` gets the thread and which of so many slices is due.
fn slowest(threads: usize, slices: usize, work: impl Fn(usize, usize) + Sync) -> f64 {
    let arrived = AtomicUsize::new(0);
    let (arrived, work) = (&arrived, &work);
    let run = move |thread: usize| {
        let timed = |round: usize| {
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < (round + 1) * threads {
                spin_loop();
            }
            let start = Instant::now();
            work(thread, round % slices);
            start.elapsed().as_secs_f64()
        };
        (0..slices * REPEATS).map(timed).collect::<Vec<_>>()
    };
    let times = thread::scope(|scope| {
        let handles: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let mut times = vec![run(0)];
        times.extend(handles.into_iter().map(|handle| handle.join().expect("no thread panics")));
        times
    });
    let slowest = |round: usize| times.iter().map(|times| times[round]).fold(0.0, f64::max);
    let rounds = |slice: usize| (slice..slices * REPEATS).step_by(slices);
    (0..slices).map(|slice| rounds(slice).map(slowest).fold(f64::INFINITY, f64::min)).sum()
}

/// The `index`-th of so many parts of `0..length`.
fn part(length: usize, index: usize, parts: usize) -> Range<usize> {
    length * index / parts..length * (index + 1) / parts
}

struct Dots(usize);

impl Kernel for Dots {
    type Output = i32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        let mut sums = [s.zero_i32(); 8];
        let factor = s.splat_i32(black_box(0x0102_0304));
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = s.dot_u7(*sum, factor, factor);
            }
        }
        sums.into_iter().fold(0, |total, sum| total.wrapping_add(s.reduce_sum_i32(sum)))
    }
}

struct Sum<'a>(&'a [i32]);

impl Kernel for Sum<'_> {
    type Output = i32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        let mut sums = [s.zero_i32(); 4];
        for vectors in self.0.as_chunks().0.as_chunks::<4>().0 {
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                *sum = s.add_i32(*sum, s.load_i32(vector));
            }
        }
        let halves = [s.add_i32(sums[0], sums[1]), s.add_i32(sums[2], sums[3])];
        s.reduce_sum_i32(s.add_i32(halves[0], halves[1]))
    }
}
