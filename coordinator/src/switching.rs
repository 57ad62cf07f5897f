//! A row that takes over from the one in force while sessions run, as whoever places rows asks for it.
//!
//! [`Control::hold`](crate::actor::Control::hold) lets the row come to rest and says what of its memory is in use. When
//! the new row has that, [`Control::switch`](crate::actor::Control::switch) puts it in force; else
//! [`Control::resume`](crate::actor::Control::resume) lets the old one go on. Requests are taken all the while.

pub(crate) mod actor;

use paceline_proto::{PageId, Slot};

/// What is in use of the memory of a row that is still.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Still {
    /// Pages of keys and values, in ascending order.
    pub pages: Vec<PageId>,
    /// Slots of recurrent states, in ascending order.
    pub slots: Vec<Slot>,
}
