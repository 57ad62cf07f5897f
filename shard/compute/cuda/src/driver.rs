//! What a stage needs of a GPU, real or emulated: memory, copies, and kernels by name.

use paceline_compute::Result;
use paceline_compute::device::Description;

/// A place in a device's memory.
pub type Address = u64;

/// A kernel of a driver, found by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel(pub u64);

/// How many blocks of how many threads a launch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of shared memory that are asked for at the launch.
    pub shared_bytes: u32,
}

/// A GPU. Everything asked of it happens in order.
///
/// Addresses are checked by whoever calls, which is [`Memory`](crate::memory::Memory) for all but launches.
pub trait Driver: Send + Sync {
    /// What it is.
    fn describe(&self) -> Description;

    /// Bytes of memory that are free now.
    ///
    /// # Errors
    /// If the device does not answer.
    fn free_bytes(&self) -> Result<u64>;

    /// Reserves memory, aligned to 256 bytes; what is in it is not said.
    ///
    /// # Errors
    /// Memory that cannot be had.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Gives memory back.
    ///
    /// # Safety
    /// It is the address of an allocation that nobody uses any more.
    unsafe fn free(&self, address: Address);

    /// Sets bytes.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Safety
    /// They lie in one allocation.
    unsafe fn fill(&self, to: Address, byte: u8, bytes: usize) -> Result<()>;

    /// Copies bytes from one place to another that does not overlap it.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Safety
    /// Both lie in an allocation.
    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// Copies bytes to the device; `from` may be changed when this returns.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Safety
    /// They fit into the allocation.
    unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()>;

    /// Copies bytes from the device, when all that was asked before is done.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Safety
    /// They lie in one allocation.
    unsafe fn download(&self, from: Address, into: &mut [u8]) -> Result<()>;

    /// Finds a kernel.
    ///
    /// # Errors
    /// If there is none of that name, or it cannot be made ready.
    fn kernel(&self, name: &str) -> Result<Kernel>;

    /// Starts a kernel. Each argument's value lies in the low bytes of its word.
    ///
    /// # Errors
    /// A shape that the device cannot run; a failure of anything asked before.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and it reads and writes nothing outside of allocations.
    unsafe fn launch(&self, kernel: Kernel, shape: Shape, arguments: &[u64]) -> Result<()>;

    /// Waits until all that was asked before is done.
    ///
    /// # Errors
    /// A failure of any of it.
    fn synchronize(&self) -> Result<()>;
}
