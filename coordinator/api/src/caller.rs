//! Who calls, and what a request of theirs uses.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use actix_web::HttpMessage;
use bytes::Bytes;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::limits::{Exceeded, KeyLimits, Left, Meter};

/// The owner of a key, with what they have used lately.
#[derive(Debug)]
pub(crate) struct Caller {
    name: String,
    meter: Mutex<Meter>,
}

impl Caller {
    pub(crate) fn new(name: String, limits: KeyLimits) -> Self {
        Self { name, meter: Mutex::new(Meter::new(limits)) }
    }

    /// What the log calls them.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// One more request.
    pub(crate) fn request(&self) -> std::result::Result<(), Exceeded> {
        self.meter().request(Instant::now())
    }

    /// Requests and tokens that are left, where they are limited.
    pub(crate) fn left(&self) -> (Option<Left>, Option<Left>) {
        self.meter().left(Instant::now())
    }

    /// Nothing in it can be half changed when a thread panics.
    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of one request: whose it is, and what it has used so far.
#[derive(Debug, Default)]
pub(crate) struct Account {
    caller: OnceLock<Arc<Caller>>,
    /// The body, where it is to be kept for the audit log.
    body: OnceLock<Bytes>,
    prompt_tokens: AtomicUsize,
    completion_tokens: AtomicUsize,
}

impl Account {
    /// The account of a request; one of nobody where none was opened.
    pub(crate) fn of(request: &impl HttpMessage) -> Arc<Self> {
        request.extensions().get::<Arc<Self>>().cloned().unwrap_or_default()
    }

    /// Says whose request it is.
    pub(crate) fn belongs_to(&self, caller: &Arc<Caller>) {
        // A request has one key.
        let _ = self.caller.set(Arc::clone(caller));
    }

    /// Whose request it is, once that is known.
    pub(crate) fn caller(&self) -> Option<&Arc<Caller>> {
        self.caller.get()
    }

    /// Keeps the body for the audit log.
    pub(crate) fn keep_body(&self, body: &Bytes) {
        // A request has one body.
        let _ = self.body.set(body.clone());
    }

    /// The body, where it was kept.
    pub(crate) fn body(&self) -> Option<&Bytes> {
        self.body.get()
    }

    /// Tokens of prompts and of answers so far.
    pub(crate) fn tokens(&self) -> (usize, usize) {
        (self.prompt_tokens.load(Ordering::Relaxed), self.completion_tokens.load(Ordering::Relaxed))
    }

    /// Lets so many sessions begin, with so many tokens of prompts.
    pub(crate) fn open(self: &Arc<Self>, sessions: usize, prompt_tokens: usize) -> Result<Permit> {
        let sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
        if let Some(caller) = self.caller() {
            let mut meter = caller.meter();
            let now = Instant::now();
            meter.open(sessions, now).map_err(Error::Limited)?;
            meter.charge(prompt_tokens, now);
        }
        self.prompt_tokens.fetch_add(prompt_tokens, Ordering::Relaxed);
        Ok(Permit { account: Arc::clone(self), sessions })
    }
}

/// Sessions that may run. They are over when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    account: Arc<Account>,
    sessions: u32,
}

impl Permit {
    /// An answer is one token longer.
    pub(crate) fn token(&self) {
        self.account.completion_tokens.fetch_add(1, Ordering::Relaxed);
        if let Some(caller) = self.account.caller() {
            caller.meter().charge(1, Instant::now());
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(caller) = self.account.caller() {
            caller.meter().close(self.sessions);
        }
    }
}
