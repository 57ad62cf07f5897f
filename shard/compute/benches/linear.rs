//! Speed of the matrix products next to what the machine's memory can deliver.
//!
//! For every type: GB/s of packed weights for 1 and 8 rows (decoding and verifying), and GMAC/s for
//! 64 and 512 rows (prefill). Arguments: `THREADS` (default 1), then names of types (default all),
//! and an instruction set.
//!
//! `cargo bench -p paceline-compute --bench linear -- 2 Q4_K Q6_K avx512`

use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use paceline_compute::blocks;
use paceline_compute::cpu::linear::{
    INPUT_BLOCK, Input, OutputRows, PANEL_ROWS, PackedWeight, QuantizedBlock, Rows, linear, quantize,
};
use paceline_compute::cpu::simd::{Isa, Kernel, Simd};
use paceline_gguf::TensorType;

const COLUMNS: usize = 4096;
/// Enough that no cache holds the weights.
const DECODE_ROWS: usize = 24 * 1024;
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
    println!("{isa}, {threads} threads, reading memory at {:.1} GB/s", memory_speed(&settings));
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
    let (weight, packing) = random_weight(kind, DECODE_ROWS);
    let [one, eight] = [1, 8].map(|rows| seconds(settings, &weight, rows));
    let gigabytes = weight.bytes() as f64 / 1e9;
    let bits = 8.0 * weight.bytes() as f64 / (DECODE_ROWS * COLUMNS) as f64;
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
    let macs_per_panel = rows * PANEL_ROWS * COLUMNS;
    let step = (MACS_PER_SLICE / macs_per_panel).clamp(1, 64);
    slowest(settings.threads, |thread| {
        let share = |part: usize| weight.panels() * part / settings.threads;
        let (start, end) = (share(thread), share(thread + 1));
        let columns = weight.rows();
        // Every thread has an output of its own: the time is the same.
        let mut products = vec![0.0; rows * columns];
        best(end - start, step, |panels| {
            let mut output = OutputRows::new(&mut products, columns, false);
            let panels = start + panels.start..start + panels.end;
            linear(settings.isa, weight, 0, panels, input, Rows::First(rows), &mut output);
        })
    })
}

/// GB/s of plain reading.
fn memory_speed(settings: &Settings) -> f64 {
    let values = vec![1i32; 64 << 20];
    let seconds = slowest(settings.threads, |thread| {
        let share = values.len() / settings.threads;
        let values = &values[share * thread..][..share];
        best(share, 1 << 18, |slice| {
            black_box(settings.isa.run(Sum(&values[slice])));
        })
    });
    size_of_val(values.as_slice()) as f64 / 1e9 / seconds
}

/// Runs the same measurement on all threads at once; the longest time counts.
fn slowest(threads: usize, measure: impl Fn(usize) -> f64 + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let (barrier, measure) = (&barrier, &measure);
    thread::scope(|scope| {
        let run = move |thread: usize| {
            barrier.wait();
            measure(thread)
        };
        let handles: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let first = run(0);
        let others = handles.into_iter().map(|handle| handle.join().expect("no thread panics"));
        others.fold(first, f64::max)
    })
}

/// Does work in slices of about a millisecond, all of it some times over, and sums the shortest
/// times of every slice: what a machine does that is interrupted less often than that.
fn best(length: usize, step: usize, mut work: impl FnMut(Range<usize>)) -> f64 {
    let mut shortest = vec![f64::INFINITY; length.div_ceil(step)];
    for _ in 0..REPEATS {
        for (index, shortest) in shortest.iter_mut().enumerate() {
            let start = Instant::now();
            work(index * step..length.min((index + 1) * step));
            *shortest = shortest.min(start.elapsed().as_secs_f64());
        }
    }
    shortest.iter().sum()
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
