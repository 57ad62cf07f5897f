//! The side of an endpoint within a host: a Unix socket for processes of the same user.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::{CONNECT_DEADLINE, HELLO_DEADLINE, Shared, greeting, probe};
use crate::hello::{Answer, Hello, Purpose, Refusal};
use crate::memories::answer;
use crate::remote::{Terms, UnixLink};
use crate::{Error, LinkKey, LinkSettings, MoveKey, Result, Target};

/// A listener and the user who may connect to it.
pub(super) struct Listener {
    listener: UnixListener,
    user: u32,
}

/// Listens on a path. A socket that a dead process left there is replaced.
pub(super) async fn bind(path: &Path) -> Result<Listener> {
    let system = |error| Error::system(format!("the Unix socket {}", path.display()), error);
    if is_left_over(path).await {
        fs::remove_file(path).map_err(system)?;
    }
    let listener = UnixListener::bind(path).map_err(system)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(system)?;
    Ok(Listener { listener, user: own_user().map_err(system)? })
}

/// Who this process runs as: what the other end of a socket is told.
fn own_user() -> io::Result<u32> {
    let (one, _other) = UnixStream::pair()?;
    Ok(one.peer_cred()?.uid())
}

async fn is_left_over(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket && UnixStream::connect(path).await.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Connects to another endpoint of this user.
pub(crate) async fn connect(to: &Target, path: &Path) -> Result<UnixStream> {
    let failed = |error| Error::connection(to, error);
    let stream = UnixStream::connect(path).await.map_err(failed)?;
    let owner = stream.peer_cred().map_err(failed)?.uid();
    if owner != own_user().map_err(failed)? {
        return Err(Error::connection(to, format!("the socket belongs to user {owner}")));
    }
    Ok(stream)
}

/// Greets everyone of this user who comes, so many at a time.
pub(super) async fn accept(listener: Listener, shared: Arc<Shared>) {
    loop {
        match listener.listener.accept().await {
            Ok((stream, _)) => greet(stream, listener.user, &shared),
            Err(error) => {
                // Mostly too many open files: others may close some.
                shared.complaints.refused("the Unix socket", error);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn greet(stream: UnixStream, user: u32, shared: &Arc<Shared>) {
    let Ok(permit) = shared.half_open.clone().try_acquire_owned() else {
        shared.complaints.refused("the Unix socket", "too many connections have not yet said what they want");
        return;
    };
    let shared = shared.clone();
    tokio::spawn(async move {
        if let Err(error) = serve(stream, user, permit, &shared).await {
            shared.complaints.refused("the Unix socket", error);
        }
    });
}

async fn serve(mut stream: UnixStream, user: u32, permit: OwnedSemaphorePermit, shared: &Arc<Shared>) -> Result<()> {
    let peer = stream.peer_cred().map_err(|error| Error::system("the user of a Unix socket's peer", error))?;
    if peer.uid() != user {
        return Err(Error::greeting(format!("user {} is not user {user}", peer.uid())));
    }
    let hello = match timeout(HELLO_DEADLINE, greeting::hear(&mut stream)).await {
        Err(_) => return Err(Error::Timeout { what: "the greeting".into(), after: HELLO_DEADLINE }),
        Ok(Err(error)) => {
            greeting::answer(&mut stream, Answer::refuse(shared.node, Refusal::Unreadable)).await?;
            return Err(error);
        }
        Ok(Ok(hello)) => hello,
    };
    if hello.to != shared.node {
        return refuse(stream, shared, &hello, Refusal::Node).await;
    }
    match hello.purpose {
        Purpose::Link(key, settings) => link(stream, shared, &hello, &key, &settings).await,
        Purpose::Pieces => pieces(stream, permit, shared).await,
        Purpose::Memories(key) => memories(stream, permit, shared, &hello, &key).await,
    }
}

async fn link(
    mut stream: UnixStream,
    shared: &Arc<Shared>,
    hello: &Hello,
    key: &LinkKey,
    settings: &LinkSettings,
) -> Result<()> {
    let arrival = match shared.expected.claim(hello.from, key, settings) {
        Ok(arrival) => arrival,
        Err(refusal) => return refuse(stream, shared, hello, refusal).await,
    };
    greeting::answer(&mut stream, Answer::accept(shared.node)).await?;
    let (mut receive, mut send) = stream.split();
    let measured = timeout(CONNECT_DEADLINE, probe::be_measured(&mut receive, &mut send)).await;
    measured.map_err(|_| Error::Timeout { what: "measuring the link".into(), after: CONNECT_DEADLINE })??;
    let terms = Terms::new(key, *settings);
    // Whoever expected it may have left; then the link closes.
    let _ = arrival.send(UnixLink::new(stream)?.into_receiver(terms));
    Ok(())
}

async fn pieces(mut stream: UnixStream, permit: OwnedSemaphorePermit, shared: &Arc<Shared>) -> Result<()> {
    let Ok(_fetcher) = shared.fetchers.clone().try_acquire_owned() else {
        return Err(Error::greeting("too many nodes fetch pieces"));
    };
    greeting::answer(&mut stream, Answer::accept(shared.node)).await?;
    drop(permit);
    let (mut receive, mut send) = stream.split();
    match shared.pieces.answer(&mut receive, &mut send).await {
        // It only wanted to know that somebody is here.
        Err(Error::Closed) => Ok(()),
        answered => answered,
    }
}

async fn memories(
    mut stream: UnixStream,
    permit: OwnedSemaphorePermit,
    shared: &Arc<Shared>,
    hello: &Hello,
    key: &MoveKey,
) -> Result<()> {
    let Ok(_taker) = shared.takers.clone().try_acquire_owned() else {
        return Err(Error::greeting("too many nodes take memories"));
    };
    drop(permit);
    let Some(source) = shared.gives.find(key).await else {
        return refuse(stream, shared, hello, Refusal::NotGiven).await;
    };
    greeting::answer(&mut stream, Answer::accept(shared.node)).await?;
    let (mut receive, mut send) = stream.split();
    answer(source, &mut receive, &mut send).await
}

async fn refuse(mut stream: UnixStream, shared: &Arc<Shared>, hello: &Hello, refusal: Refusal) -> Result<()> {
    greeting::answer(&mut stream, Answer::refuse(shared.node, refusal)).await?;
    Err(Error::greeting(format!("node {}: {refusal}", hello.from)))
}
