//! What this host can do at best: the roofs that figures of the kernels are set against.
//!
//! Both are measured with the threads, the instructions and the kind of memory that a stage has.

#![expect(unsafe_code, reason = "threads read memory that nobody writes")]

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::CpuDevice;
use super::pool::Pool;
use super::shared::Shared;
use super::simd::{Isa, Kernel, LANES, Simd};
use crate::Result;

/// Bytes of one vector.
const VECTOR: usize = 4 * LANES;
/// Multiplications of one integer dot product of vectors.
const MACS: u64 = VECTOR as u64;
/// Turns of the dot loop in one sample: far more than starting the threads takes, and still so short that others who
/// use the machine disturb only some samples.
const TURNS: u64 = 50_000;

/// A device's threads, and memory to measure with.
pub struct Roof {
    pool: Arc<Pool>,
    isa: Isa,
    memory: Shared<u8>,
}

impl Roof {
    /// Uses the threads of `device` and fills `bytes` of memory, which should be far more than any cache holds.
    ///
    /// # Errors
    /// Memory that the system does not grant.
    pub fn new(device: &CpuDevice, bytes: usize) -> Result<Self> {
        let mut memory = Shared::zeroed("measuring", bytes.next_multiple_of(VECTOR))?;
        // Pages that were never written are one page of zeros.
        memory.all_mut().fill(1);
        Ok(Self { pool: Arc::clone(&device.pool), isa: device.isa, memory })
    }

    /// Bytes per second that all threads together read from some of the memory, each its own part, once through.
    ///
    /// # Errors
    /// A thread that panicked.
    ///
    /// # Panics
    /// If there are no such bytes.
    pub fn read(&self, bytes: Range<usize>) -> Result<f64> {
        let (first, vectors) = (bytes.start / VECTOR, bytes.len() / VECTOR);
        let begun = Instant::now();
        self.pool.run(&|member| {
            let own = member.share(vectors);
            let own = (first + own.start) * VECTOR..(first + own.end) * VECTOR;
            // SAFETY: nobody writes the memory after it was filled.
            let own = unsafe { self.memory.part(own) };
            black_box(self.isa.run(Read { vectors: own.as_chunks().0 }));
        })?;
        Ok((vectors * VECTOR) as f64 / begun.elapsed().as_secs_f64())
    }

    /// Multiplications (of bytes, with their additions) per second of all threads together, in registers only.
    ///
    /// # Errors
    /// A thread that panicked.
    pub fn dot(&self) -> Result<f64> {
        let done = AtomicU64::new(0);
        let begun = Instant::now();
        self.pool.run(&|_| {
            done.fetch_add(self.isa.run(Dot { turns: TURNS }), Ordering::Relaxed);
        })?;
        Ok((done.into_inner() * MACS) as f64 / begun.elapsed().as_secs_f64())
    }
}

/// Adds up vectors, in four sums so that no addition waits for the one before.
struct Read<'a> {
    vectors: &'a [[u8; VECTOR]],
}

impl Kernel for Read<'_> {
    type Output = i32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> i32 {
        let mut sums = [simd.zero_i32(); 4];
        for four in self.vectors.as_chunks::<4>().0 {
            for (sum, vector) in sums.iter_mut().zip(four) {
                *sum = simd.add_i32(*sum, simd.load_bytes(vector));
            }
        }
        let [a, b, c, d] = sums;
        simd.reduce_sum_i32(simd.add_i32(simd.add_i32(a, b), simd.add_i32(c, d)))
    }
}

/// Dot products of bytes in registers; returns how many vectors were multiplied.
struct Dot {
    turns: u64,
}

impl Kernel for Dot {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> u64 {
        // As many chains as cover the latency of an instruction, where there are registers for them.
        if S::REGISTERS >= 32 { dots::<S, 12>(simd, self.turns) } else { dots::<S, 4>(simd, self.turns) }
    }
}

/// Each chain's second factor is its neighbour's sum: nothing that a compiler could compute beforehand.
#[inline(always)]
fn dots<S: Simd, const CHAINS: usize>(simd: S, turns: u64) -> u64 {
    let unsigned = simd.splat_i32(black_box(0x0102_0304));
    let mut sums = [simd.splat_i32(black_box(0x0506_0708)); CHAINS];
    for _ in 0..turns {
        for chain in 0..CHAINS {
            sums[chain] = simd.dot_u7(sums[chain], unsigned, sums[(chain + 1) % CHAINS]);
        }
    }
    for sum in sums {
        black_box(simd.reduce_sum_i32(sum));
    }
    turns * CHAINS as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_and_every_set_of_instructions_multiplies() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let vectors = [[1; VECTOR]; 12];
            // Every lane adds 0x01010101 twelve times.
            let expected = 0x0101_0101_i32.wrapping_mul(12 * LANES as i32);
            assert_eq!(isa.run(Read { vectors: &vectors }), expected, "{isa}");
            assert_eq!(isa.run(Dot { turns: 3 }) % 12, 0, "{isa}");
        }
    }

    #[test]
    fn roofs_are_positive_for_any_number_of_threads() {
        for threads in [1, 3] {
            let device = CpuDevice::new(threads, Some(Isa::Scalar)).unwrap();
            assert!(Roof::new(&device, 1 << 16).unwrap().read(0..1 << 16).unwrap() > 0.0);
        }
        let device = CpuDevice::new(1, None).unwrap();
        assert!(Roof::new(&device, 0).unwrap().dot().unwrap() > 0.0);
    }
}
