//! The server: pages, limits, and its end.

use std::any::Any;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use actix_cors::Cors;
use actix_web::dev::Server;
use actix_web::middleware::{Condition, from_fn};
use actix_web::{App, HttpRequest, HttpServer, Resource, Route, web};
use paceline_coordinator::{Embedder, Engine};
use rustls::ServerConfig;
use tokio::time::interval;
use tracing::Span;

use crate::config::{ApiConfig, Defaults};
use crate::error::{Error, Result};
use crate::responses::{self, Kept};
use crate::serving::{self, Models, Served, Serving, Task};
use crate::{
    access, cache, chat, completions, embeddings, messages, models, observe, openapi, page, rerank, scale, status,
    tokenize,
};

/// How often samples of histograms are put in their buckets when nobody reads the metrics: until then each sample
/// takes memory of its own.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// How long browsers may remember that a page may use the API.
const CORS_SECONDS: usize = 3600;

/// How long a connection that the server closes may take to notice.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads of each worker for work that takes time: templates, tokens.
const BACKGROUND_THREADS: usize = 4;

/// What every page works with.
pub(crate) struct Host {
    pub(crate) models: Arc<dyn Models>,
    pub(crate) config: Arc<ApiConfig>,
    /// Responses that others can go on from.
    pub(crate) kept: Arc<Kept>,
}

/// A model that writes texts, as the pages work with it that answer a request.
pub(crate) struct Api {
    pub(crate) engine: Engine,
    pub(crate) config: Arc<ApiConfig>,
    /// What holds for requests that do not say.
    pub(crate) defaults: Arc<Defaults>,
    /// Keeps the model loaded.
    pub(crate) held: Arc<dyn Any + Send + Sync>,
}

impl Host {
    /// The model that a request means, loaded.
    pub(crate) async fn open(&self, wanted: Option<&str>, task: Task) -> Result<Serving> {
        let (place, id) = {
            // The list may hold a model that must end before the wanted one is loaded, so it is not kept meanwhile.
            let models = self.models.list();
            let place = serving::find(&models, wanted, task)?;
            (place, models[place].card.id().to_owned())
        };
        Span::current().record("model", id);
        Ok(self.models.open(place, wanted.unwrap_or_default()).await?)
    }

    /// The model that a request for texts means, loaded.
    pub(crate) async fn texts(&self, wanted: Option<&str>) -> Result<web::Data<Api>> {
        Ok(web::Data::new(self.texts_of(self.open(wanted, Task::Texts).await?)?))
    }

    /// What pages work with, of a model that writes texts.
    pub(crate) fn texts_of(&self, serving: Serving) -> Result<Api> {
        let Serving { served, defaults, held } = serving;
        let Served::Texts(engine) = served else {
            return Err(Error::Internal("a model that writes texts became another one".to_owned()));
        };
        Ok(Api { engine, config: Arc::clone(&self.config), defaults, held })
    }

    /// The model that a request for vectors or scores means, loaded.
    pub(crate) async fn vectors(
        &self,
        wanted: Option<&str>,
        task: Task,
    ) -> Result<(Embedder, Arc<dyn Any + Send + Sync>)> {
        let Serving { served, held, .. } = self.open(wanted, task).await?;
        match served {
            Served::Vectors(embedder) => Ok((embedder, held)),
            Served::Texts(_) => Err(Error::Internal("a model that reads texts became another one".to_owned())),
        }
    }
}

impl Api {
    /// Does work that takes time without holding up other connections.
    pub(crate) async fn in_background<T: Send + 'static>(
        api: &web::Data<Self>,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let api = web::Data::clone(api);
        in_background(move || work(&api)).await
    }
}

/// Does work that takes time without holding up other connections.
pub(crate) async fn in_background<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = web::block(work).await;
    done.unwrap_or_else(|_| Err(Error::Internal("the work on the request was abandoned".to_owned())))
}

/// Serves `models` on `listener` until `shutdown` is ready; then accepts nothing more, lets answers go on for
/// [`ApiConfig::shutdown_timeout`], and disconnects who is left.
///
/// Works in any tokio runtime; connections are served on threads of their own.
///
/// # Errors
/// When the socket cannot be listened on.
pub async fn serve(
    models: Arc<dyn Models>,
    config: ApiConfig,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let metrics = config.metrics.clone();
    let server = server(models, config, listener, shutdown)?;
    let upkeep = async {
        let Some(metrics) = metrics else { return std::future::pending().await };
        let mut ticks = interval(METRICS_UPKEEP);
        loop {
            ticks.tick().await;
            metrics.run_upkeep();
        }
    };
    tokio::select! {
        ended = server => ended,
        () = upkeep => unreachable!("the upkeep of the metrics never ends"),
    }
}

fn server(
    models: Arc<dyn Models>,
    config: ApiConfig,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<Server> {
    let workers = config.workers.max(1);
    let (head_timeout, idle_timeout) = (config.head_timeout, config.idle_timeout);
    let (connections, shutdown_timeout) = (config.connections, config.shutdown_timeout);
    let (origins, tls) = (config.cors_origins.clone(), config.tls.clone());
    let kept = Kept::open(config.response_limits, config.response_shelf.clone())?;
    let host = web::Data::new(Host { models, config: Arc::new(config), kept: Arc::new(kept) });
    let app = move || {
        App::new()
            .app_data(host.clone())
            .configure(pages)
            .default_service(web::to(unknown_route))
            .wrap(from_fn(access::authorize))
            .wrap(Condition::new(!origins.is_empty(), cors(&origins)))
            .wrap(from_fn(observe::observe))
    };
    let server = HttpServer::new(app)
        .workers(workers)
        .worker_max_blocking_threads(BACKGROUND_THREADS)
        .max_connections(connections.div_ceil(workers))
        .client_request_timeout(head_timeout)
        .client_disconnect_timeout(DISCONNECT_TIMEOUT)
        .keep_alive(idle_timeout)
        .shutdown_timeout(shutdown_timeout.as_secs())
        .shutdown_signal(shutdown)
        .tcp_nodelay(true)
        // The end of what a client sends is the end of the client: its request is dropped at once, even while
        // nothing is written. Without this a client that left is noticed only by the next event that it is sent.
        .h1_allow_half_closed(false);
    let server = match tls {
        None => server.listen(listener)?,
        Some(tls) => server.listen_rustls_0_23(listener, ServerConfig::clone(&tls))?,
    };
    Ok(server.run())
}

/// Lets web pages of these origins use the API. Keys travel in headers that pages set themselves, never in cookies.
fn cors(origins: &[String]) -> Cors {
    let cors = Cors::default().allow_any_method().allow_any_header().expose_any_header().max_age(CORS_SECONDS);
    if origins.iter().any(|origin| origin == "*") {
        return cors.allow_any_origin().send_wildcard();
    }
    origins.iter().fold(cors, |cors, origin| cors.allowed_origin(origin))
}

fn pages(config: &mut web::ServiceConfig) {
    config
        .service(resource("/", web::get().to(page::show), "GET, HEAD").route(web::head().to(page::show)))
        .service(resource("/page/{name}", web::get().to(page::file), "GET, HEAD").route(web::head().to(page::file)))
        .service(resource("/openapi.json", web::get().to(openapi::show), "GET"))
        .service(resource("/health", web::get().to(status::health), "GET"))
        .service(resource("/live", web::get().to(status::live), "GET"))
        .service(resource("/metrics", web::get().to(status::metrics), "GET"))
        .service(resource("/admin/v1/status", web::get().to(status::report), "GET"))
        .service(resource("/admin/v1/scale", web::post().to(scale::create), "POST"))
        .service(resource("/admin/v1/cache", web::get().to(cache::list), "GET"))
        .service(resource("/admin/v1/cache/pin", web::post().to(cache::pin), "POST"))
        .service(resource("/admin/v1/cache/unpin", web::post().to(cache::unpin), "POST"))
        .service(resource("/admin/v1/cache/drop", web::post().to(cache::forget), "POST"))
        .service(resource("/v1/models", web::get().to(models::list), "GET"))
        .service(resource("/v1/models/{id:.+}", web::get().to(models::show), "GET"))
        .service(resource("/v1/chat/completions", web::post().to(chat::create), "POST"))
        .service(resource("/v1/completions", web::post().to(completions::create), "POST"))
        .service(resource("/v1/messages", web::post().to(messages::create), "POST"))
        .service(resource("/v1/messages/count_tokens", web::post().to(messages::count), "POST"))
        .service(resource("/v1/responses", web::post().to(responses::create), "POST"))
        .service(
            resource("/v1/responses/{id}", web::get().to(responses::show), "GET, DELETE")
                .route(web::delete().to(responses::remove)),
        )
        .service(resource("/v1/responses/{id}/input_items", web::get().to(responses::input_items), "GET"))
        .service(resource("/v1/embeddings", web::post().to(embeddings::create), "POST"))
        .service(resource("/v1/rerank", web::post().to(rerank::create), "POST"))
        .service(resource("/v2/rerank", web::post().to(rerank::create), "POST"))
        .service(resource("/rerank", web::post().to(rerank::create), "POST"))
        .service(resource("/tokenize", web::post().to(tokenize::tokenize), "POST"))
        .service(resource("/detokenize", web::post().to(tokenize::detokenize), "POST"));
}

/// A page that says which method it takes.
fn resource(path: &str, route: Route, allowed: &'static str) -> Resource {
    web::resource(path).route(route).default_service(web::to(move |request: HttpRequest| async move {
        let (method, path) = (request.method().clone(), request.path().to_owned());
        Err::<&str, _>(Error::MethodNotAllowed { method, path, allowed })
    }))
}

async fn unknown_route(request: HttpRequest) -> Result<&'static str> {
    Err(Error::UnknownRoute { method: request.method().clone(), path: request.path().to_owned() })
}
