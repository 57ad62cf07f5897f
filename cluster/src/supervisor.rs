//! What the program tells whoever supervises it, such as systemd: that it is ready, what it is doing, that it still
//! answers, and that it stops (`sd_notify(3)`: lines to the socket that the environment names).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use paceline_coordinator::placement::Health;
use tokio::sync::watch;
use tokio::time::{interval, timeout};
use tracing::warn;

/// The most bytes of a status line.
const STATUS: usize = 200;

/// The supervisor, if there is one. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Supervisor {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// A process that is silent for so long is ended and started again.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// The one that the environment names.
    pub(crate) fn of_environment() -> Result<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let number = |name: &str| match variable(name) {
            None => Ok(None),
            Some(value) => value
                .to_str()
                .and_then(|text| text.parse::<u64>().ok())
                .map(Some)
                .with_context(|| format!("{name} is {}, it must be a whole number", value.display())),
        };
        let Some(name) = variable("NOTIFY_SOCKET") else { return Ok(Self::default()) };
        let socket = Self::connect(&name).with_context(|| format!("cannot use NOTIFY_SOCKET={}", name.display()))?;
        let ours = number("WATCHDOG_PID")?.is_none_or(|id| id == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC")?.filter(|micros| *micros > 0 && ours).map(Duration::from_micros);
        Ok(Self { socket: Some(Arc::new(socket)), watchdog })
    }

    fn connect(name: &OsStr) -> Result<(UnixDatagram, SocketAddr)> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => bail!("it is neither a path nor the name of an abstract socket"),
        };
        let socket = UnixDatagram::unbound()?;
        // A supervisor that reads nothing must not hold up the service.
        socket.set_nonblocking(true)?;
        Ok((socket, address))
    }

    /// Whether anybody is told anything.
    pub(crate) fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// The start is over.
    pub(crate) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\n{}", status_line(status)));
    }

    /// What the program is doing, for people.
    pub(crate) fn status(&self, status: &str) {
        self.tell(&status_line(status));
    }

    /// The end has begun.
    pub(crate) fn stopping(&self, status: &str) {
        self.tell(&format!("STOPPING=1\n{}", status_line(status)));
    }

    fn tell(&self, lines: &str) {
        if let Some((socket, address)) = self.socket.as_deref()
            && let Err(error) = socket.send_to_addr(lines.as_bytes(), address)
        {
            match error.kind() {
                // It is behind with reading; the next line says more than this one.
                io::ErrorKind::WouldBlock => {}
                _ => warn!(%error, "the supervisor cannot be told: {lines}"),
            }
        }
    }

    /// Says again and again that the program lives, as long as `answers` is true and comes in time. Never ends.
    pub(crate) async fn watch<Answer: Future<Output = bool>>(&self, answers: impl Fn() -> Answer) {
        let Some(patience) = self.watchdog else { return std::future::pending().await };
        // Two signs of life may be late before the third is missed.
        let pause = patience / 3;
        let mut ticks = interval(pause);
        loop {
            ticks.tick().await;
            match timeout(pause, answers()).await {
                Ok(true) => self.tell("WATCHDOG=1"),
                Ok(false) => warn!("the service does not work any more: the supervisor is told nothing"),
                Err(_) => warn!("the service did not answer within {} ms", pause.as_millis()),
            }
        }
    }

    /// Says whether requests are served, whenever that changes. Never ends.
    pub(crate) async fn follow(&self, mut health: watch::Receiver<Health>) {
        loop {
            let status = match &*health.borrow_and_update() {
                Health::Serving { epoch } => format!("serving (epoch {epoch})"),
                Health::Broken { reason, .. } => format!("not serving: {reason}"),
            };
            self.status(&status);
            if health.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// One line, of a bounded length.
fn status_line(text: &str) -> String {
    let mut line = "STATUS=".to_owned();
    for letter in text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }) {
        if line.len() + letter.len_utf8() > STATUS {
            break;
        }
        line.push(letter);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_short_line() {
        assert_eq!(status_line("a\nREADY=1"), "STATUS=a READY=1");
        let long = status_line(&"ü".repeat(500));
        assert!(long.len() <= STATUS && long.ends_with('ü'), "{long}");
    }

    #[test]
    fn names_of_sockets_are_paths_or_abstract() {
        for (name, usable) in [("/run/x", true), ("@x", true), ("x", false), ("vsock:2:1", false)] {
            assert_eq!(Supervisor::connect(OsStr::new(name)).is_ok(), usable, "{name}");
        }
    }

    #[tokio::test]
    async fn signs_of_life_stop_when_nothing_answers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let listener = UnixDatagram::bind(&path).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        let socket = Supervisor::connect(path.as_os_str()).expect("a socket");
        let watchdog = Some(Duration::from_millis(30));
        let supervisor = Supervisor { socket: Some(Arc::new(socket)), watchdog };
        let (asked, mut done) = watch::channel(0_u32);
        let answers = || {
            asked.send_modify(|count| *count += 1);
            let count = *asked.borrow();
            async move {
                match count {
                    1 => true,
                    2 => false,
                    3 => std::future::pending().await,
                    _ => true,
                }
            }
        };
        tokio::select! {
            () = supervisor.watch(answers) => {}
            enough = done.wait_for(|count| *count == 6) => drop(enough),
        }
        let mut bytes = [0; 64];
        let mut signs = 0;
        while let Ok(length) = listener.recv(&mut bytes) {
            assert_eq!(&bytes[..length], b"WATCHDOG=1");
            signs += 1;
        }
        // The first, the fourth and the fifth; the sixth was asked for, and may have been told.
        assert!(signs == 3 || signs == 4, "{signs}");
    }
}
