//! `paceline coordinator`: waits for shards, cuts the model over them, and answers requests over HTTP.
//!
//! [`actor`] knows who is here, [`rows`] carries out what the membership decides, and [`scaling`] is how people change the
//! row; [`placing`] is where the layers go, [`making`] a row on its way into force, [`handing`] what moves from one row to
//! the next, and [`offer`] the model as shards get it.

pub(crate) mod actor;
mod handing;
mod making;
mod offer;
mod placing;
mod rows;
mod scaling;

use std::io::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use paceline_api::{ClusterCard, OneModel, Served};
use paceline_control::control_server::ControlServer;
use paceline_coordinator::Service;
use paceline_core::membership::Membership;
use paceline_gguf::{Gguf, ModelShape};
use paceline_text::Tokenizer;
use paceline_transport::Endpoint;
use paceline_transport::identity::{Authority, Identity, Trust, control_server};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tracing::info;

use crate::cli::CoordinatorArgs;
use crate::control::{PROGRAM, listener, service};
use crate::http::{self, Http};
use crate::shutdown::Signals;
use crate::state::keeper::Keeper;
use crate::state::responses::ResponseFolder;
use crate::state::store::{Purpose, Store};
use crate::state::{State, Tokens, replace};
use crate::supervisor::Supervisor;
use crate::{host, layout, leftovers, model, row};
use actor::Settings;
use offer::Offer;

/// The port at which shards join, if no other is said.
pub(crate) const CONTROL_PORT: u16 = 7070;
/// The data endpoint's port, beside the control plane's.
pub(crate) const DATA_PORT: u16 = 7071;
/// Streams of one connection: a node needs one or two.
const STREAMS: u32 = 8;
/// Connections to the control plane that wait to be served.
const BACKLOG: usize = 16;

/// What a coordinator is made of, read and checked before anybody can reach it.
struct Parts {
    state: State,
    authority: Arc<Authority>,
    identity: Identity,
    store: Store,
    gguf: Arc<Gguf>,
    offer: Offer,
    http: Http,
    supervisor: Supervisor,
}

/// Serves the model from the shards that join, until a signal comes.
pub(crate) fn coordinator(arguments: &CoordinatorArgs) -> Result<()> {
    let supervisor = Supervisor::of_environment()?;
    let listener = Http::listen(&arguments.api)?;
    let state = State::open(arguments.state.folder.as_deref())?;
    let authority = Arc::new(state.authority()?);
    let identity = state.identity(&authority)?;
    let store = state.store()?;
    let gguf = model::open_with_draft(&arguments.model, &arguments.layout.draft)?;
    check_shards(&gguf, arguments.layout.shards)?;
    let (model, draft) = (arguments.model.model.as_deref(), arguments.layout.draft.file());
    let offer = Offer::of(&gguf, model, draft, &state.subfolder("hashes"))?;
    let responses = ResponseFolder::open(state.subfolder("responses"))?;
    let http = Http::new(listener, &arguments.api)?.keeping(Arc::new(responses));
    let parts = Parts { state, authority, identity, store, gguf, offer, http, supervisor };
    row::system()?.block_on(serve(arguments, parts))
}

/// Told before anybody joins.
fn check_shards(gguf: &Gguf, shards: usize) -> Result<()> {
    let blocks = ModelShape::read(gguf)?.blocks().len();
    ensure!((1..=blocks).contains(&shards), "--shards is {shards}, this model can be cut into 1 to {blocks} stages");
    Ok(())
}

async fn serve(arguments: &CoordinatorArgs, parts: Parts) -> Result<()> {
    let Parts { state, authority, identity, store, gguf, offer, http, supervisor } = parts;
    let control = TcpListener::bind(arguments.control).await;
    let control = control.with_context(|| format!("cannot listen on {}", arguments.control))?;
    let address = control.local_addr().context("the control plane's socket has no address")?;
    let endpoint = endpoint(arguments, &state, &identity, address).await?;
    endpoint.serve_pieces(offer.pieces());
    let tokens = state.tokens();
    let service = text_side(arguments, &gguf)?;
    let (engine, engine_control) = paceline_coordinator::actor::start(service, None);
    let (card, seen) = watch::channel(ClusterCard::default());
    let links = placing::Links::new(store.links()?);
    let (membership, purpose) = membership(arguments, &gguf, &offer, &store, &links)?;
    let keeper = Keeper::start(store)?;
    let cluster = actor::start(Settings {
        membership,
        identity: identity.clone(),
        endpoint: endpoint.clone(),
        offer,
        links,
        card,
        engine: engine.clone(),
        control: engine_control.clone(),
        tokens: tokens.clone(),
        keeper: keeper.clone(),
        purpose,
        queue: arguments.api.queue,
        prefill_rows: arguments.prefill_chunk,
        step_deadline: Duration::from_secs(arguments.step_deadline),
        activations: arguments.activations,
        link: arguments.link,
        overrides: model::overrides(&arguments.model),
        advertise: arguments.advertise.as_deref().and_then(advertised),
        api: http.url()?,
    });
    let http = http.of_cluster(seen, Arc::new(cluster.clone()));
    let service = service::Service { authority: Arc::clone(&authority), cluster: cluster.clone() };
    let mut serving =
        tokio::spawn(serve_control(control, control_acceptor(&identity, &tokens)?, tokens.clone(), service));
    announce(arguments, &tokens, &authority, address)?;
    let alive = || async { engine.status().await.is_ok() && cluster.is_alive().await };
    let ending = cluster.clone();
    let end = async move { ending.end().await };
    let models = OneModel::serve(Served::Texts(engine.clone()), http::defaults(&arguments.api.answers, &gguf)?, 0);
    let following = supervisor.follow(engine_control.health());
    let drain = async move { engine_control.drain().await };
    let served = tokio::select! {
        served = http.serve(models, Signals::new()?, &supervisor, following, (drain, end)) => served,
        _ = &mut serving => Err(anyhow!("the control plane has ended, and no shard could join any more")),
        () = supervisor.watch(alive) => Ok(()),
    };
    // The shards know already: they release what they hold, and join again when a coordinator is back.
    serving.abort();
    endpoint.close().await;
    keeper.close().await;
    served
}

/// Who belongs to the cluster, as far as it is known from the life before, and what rows are made for.
fn membership(
    arguments: &CoordinatorArgs,
    gguf: &Gguf,
    offer: &Offer,
    store: &Store,
    links: &placing::Links,
) -> Result<(Membership, Purpose)> {
    let shape = ModelShape::read(gguf)?;
    let wishes = layout::wishes(&shape, &arguments.model, &arguments.layout, Some(arguments.prefill_chunk))?;
    let cache_ram = arguments.layout.cache_ram.unwrap_or_default();
    let draft = offer.draft.as_ref().map(|draft| draft.hash.to_string());
    let purpose = Purpose {
        program: PROGRAM.to_owned(),
        model: offer.model.hash,
        wishes: format!("{wishes:?} {cache_ram:?} {draft:?}"),
    };
    let remembered = store.remembered(&purpose)?;
    if let Some(row) = &remembered.row {
        info!(nodes = row.nodes().len(), epoch = %remembered.epoch, "the nodes of the row before are waited for");
    }
    let planner = placing::Placing { shape, wishes, cache_ram, cache: None, links: links.clone() };
    Ok((Membership::new(arguments.layout.shards, Box::new(planner)).remembering(remembered), purpose))
}

async fn endpoint(
    arguments: &CoordinatorArgs,
    state: &State,
    identity: &Identity,
    control: SocketAddr,
) -> Result<Endpoint> {
    // With a free port for the control plane, as tests have it, the data endpoint takes a free one too.
    let port = if arguments.control.port() == 0 { 0 } else { DATA_PORT };
    let data = arguments.data.unwrap_or_else(|| SocketAddr::new(control.ip(), port));
    // Only one coordinator has the folder, so none of them is about to be used.
    leftovers::remove(&state.subfolder(""), "data-", Duration::ZERO).await;
    let unix = state.subfolder(&format!("data-{}.sock", std::process::id()));
    let endpoint = Endpoint::bind(identity.clone(), data, Some(&unix)).await;
    endpoint.with_context(|| format!("cannot open the data endpoint at {data} (UDP)"))
}

fn text_side(arguments: &CoordinatorArgs, gguf: &Arc<Gguf>) -> Result<Service> {
    let tokenizer = Arc::new(Tokenizer::from_gguf(gguf).context("cannot use the model's vocabulary")?);
    let template = layout::template(arguments.api.answers.chat_template.as_deref())?;
    let template = row::chat_template(gguf, template.as_deref(), &tokenizer)?;
    let names =
        if arguments.api.alias.is_empty() { vec![model::name(&arguments.model)] } else { arguments.api.alias.clone() };
    let model = row::model_card(gguf, &names, tokenizer.vocabulary_size(), arguments.layout.draft.settings()?)?;
    Ok(Service { model, tokenizer, template })
}

fn control_acceptor(identity: &Identity, tokens: &Tokens) -> Result<TlsAcceptor> {
    let config = control_server(identity, Arc::new(tokens.clone()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve_control(listener: TcpListener, acceptor: TlsAcceptor, tokens: Tokens, service: service::Service) {
    let (sender, connections) = mpsc::channel(BACKLOG);
    let trust: Arc<dyn Trust> = Arc::new(tokens);
    let accepting = tokio::spawn(listener::accept(listener, acceptor, trust, sender));
    let router = Server::builder()
        .http2_keepalive_interval(Some(crate::control::KEEP_ALIVE))
        .http2_keepalive_timeout(Some(crate::control::KEEP_ALIVE))
        .max_concurrent_streams(Some(STREAMS))
        .add_service(ControlServer::new(service));
    if let Err(error) = router.serve_with_incoming(ReceiverStream::new(connections)).await {
        tracing::error!(%error, "the control plane has ended");
    }
    accepting.abort();
}

/// The address that a person named for this host.
fn advertised(name: &str) -> Option<IpAddr> {
    let mut addresses = name.to_socket_addrs().ok()?;
    addresses.next().map(|address| address.ip())
}

/// Tells people how shards join.
fn announce(arguments: &CoordinatorArgs, tokens: &Tokens, authority: &Authority, address: SocketAddr) -> Result<()> {
    let reached = match &arguments.advertise {
        Some(advertised) => advertised.clone(),
        None => host::reachable(address).to_string(),
    };
    let token = tokens.usual(&reached, authority)?.to_string();
    if let Some(path) = &arguments.token_file {
        replace(path, token.as_bytes())?;
    }
    let wanted = arguments.layout.shards;
    let mut text = format!("waiting for {wanted} shard{} at {reached}\n", if wanted == 1 { "" } else { "s" });
    text += "join from any host that reaches it:\n";
    text += &match &arguments.token_file {
        Some(path) => format!("  paceline shard --token-file {}\n", Path::new(path).display()),
        None => format!("  paceline shard --join {reached} --token {token}\n"),
    };
    std::io::stderr().write_all(text.as_bytes()).context("cannot write to standard error")
}
