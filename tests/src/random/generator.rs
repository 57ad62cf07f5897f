//! The random numbers that the reference's models were drawn with: PCG64 (pcg-random.org, XSL-RR output) and single
//! precision normal numbers by the ziggurat method (Marsaglia and Tsang 2000), step by step as in NumPy.

/// State and increment that NumPy's seeding makes of the seed 1234.
const SEED_1234: (u128, u128) = (0x160a_d840_06fe_21ea_f69b_873d_9fe4_5409, 0x50c8_fb16_3c7c_ea4e_d0f5_1ce6_006e_4325);
const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

const LAYERS: usize = 256;
/// Where the ziggurat's tail begins.
const TAIL: f64 = 3.654_152_885_361_009;
/// Area of each of its layers.
const AREA: f64 = 0.004_928_673_233_991_41;
/// Random fractions have 23 bits.
const FRACTION: f64 = 8_388_608.0;

/// A stream of random numbers.
pub(super) struct Generator {
    state: u128,
    increment: u128,
    /// The upper half of a number whose lower half was used.
    spare: Option<u32>,
    ziggurat: Ziggurat,
}

struct Ziggurat {
    /// Fractions below this lie inside the layer for certain.
    inside: [u32; LAYERS],
    /// Width of a layer per unit of fraction.
    width: [f32; LAYERS],
    /// Density at a layer's edge.
    density: [f32; LAYERS],
}

impl Generator {
    /// The stream of seed 1234, which all models share.
    pub(super) fn new() -> Generator {
        let (state, increment) = SEED_1234;
        Generator { state, increment, spare: None, ziggurat: Ziggurat::new() }
    }

    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let both = self.next_u64();
        self.spare = Some((both >> 32) as u32);
        both as u32
    }

    /// Uniform in `[0, 1)`.
    fn unit(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// Uniform in `[low, high)`.
    pub(super) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0);
        low + (high - low) * unit
    }

    /// 1 or -1.
    pub(super) fn sign(&mut self) -> f32 {
        if self.next_u32() >> 31 == 0 { -1.0 } else { 1.0 }
    }

    /// Normal with mean 0 and deviation 1.
    pub(super) fn normal(&mut self) -> f32 {
        loop {
            let bits = self.next_u32();
            let layer = (bits & 0xff) as usize;
            let fraction = bits >> 9;
            let magnitude = fraction as f32 * self.ziggurat.width[layer];
            let value = if bits & 0x100 == 0 { magnitude } else { -magnitude };
            if fraction < self.ziggurat.inside[layer] {
                return value;
            }
            if layer == 0 {
                return self.tail(fraction);
            }
            let [above, below] = [self.ziggurat.density[layer - 1], self.ziggurat.density[layer]];
            let height = (above - below) * self.unit() + below;
            if f64::from(height) < (-0.5 * f64::from(value) * f64::from(value)).exp() {
                return value;
            }
        }
    }

    fn tail(&mut self, fraction: u32) -> f32 {
        loop {
            let x = -(1.0 / TAIL) as f32 * (-self.unit()).ln_1p();
            let y = -(-self.unit()).ln_1p();
            if y + y > x * x {
                let magnitude = TAIL as f32 + x;
                return if (fraction >> 8) & 1 == 0 { magnitude } else { -magnitude };
            }
        }
    }
}

impl Ziggurat {
    fn new() -> Ziggurat {
        let density_at = |x: f64| (-0.5 * x * x).exp();
        let (mut inside, mut width, mut density) = ([0; LAYERS], [0.0; LAYERS], [0.0; LAYERS]);
        let base = AREA / density_at(TAIL);
        inside[0] = (TAIL / base * FRACTION) as u32;
        width[0] = (base / FRACTION) as f32;
        density[0] = 1.0;
        width[LAYERS - 1] = (TAIL / FRACTION) as f32;
        density[LAYERS - 1] = density_at(TAIL) as f32;
        let mut outer = TAIL;
        for layer in (1..LAYERS - 1).rev() {
            let edge = (-2.0 * (AREA / outer + density_at(outer)).ln()).sqrt();
            inside[layer + 1] = (edge / outer * FRACTION) as u32;
            width[layer] = (edge / FRACTION) as f32;
            density[layer] = density_at(edge) as f32;
            outer = edge;
        }
        Ziggurat { inside, width, density }
    }
}
