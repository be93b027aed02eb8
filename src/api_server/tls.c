// TLS for the HTTP server: see tls.h. OpenSSL stays here.
#include "api_server/tls.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/memory.h"

struct tls {
    SSL_CTX *context;
};

/** The oldest fault that OpenSSL noted, and forgets all. */
static const char *openssl_reason(void)
{
    unsigned long code = ERR_get_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return reason ? reason : "no reason given";
}

static enum status check_file(const char *flag, const char *path, struct error *err)
{
    if (access(path, R_OK) == 0)
        return STATUS_OK;
    return error_set_field(err, STATUS_NOT_FOUND, flag, "%s %s: %s", flag, path, strerror(errno));
}

/** A key that is locked by a password: nobody is there to type it. */
static int no_password(char *out, int size, int for_writing, void *context)
{
    (void)out, (void)size, (void)for_writing, (void)context;
    return 0;
}

static enum status load_certificate(SSL_CTX *context, const struct serve_options *o,
                                    struct error *err)
{
    const char *key = o->ssl_keyfile ? o->ssl_keyfile : o->ssl_certfile;
    const char *key_flag = o->ssl_keyfile ? "--ssl-keyfile" : "--ssl-certfile";
    TRY(check_file("--ssl-certfile", o->ssl_certfile, err));
    TRY(check_file(key_flag, key, err));
    SSL_CTX_set_default_passwd_cb(context, no_password);
    if (SSL_CTX_use_certificate_chain_file(context, o->ssl_certfile) != 1)
        return error_set_field(err, STATUS_INVALID, "--ssl-certfile",
                               "--ssl-certfile %s: no certificate in PEM form: %s", o->ssl_certfile,
                               openssl_reason());
    if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        return error_set_field(err, STATUS_INVALID, key_flag,
                               "%s %s: no private key in PEM form without a password that belongs "
                               "to the certificate of %s: %s",
                               key_flag, key, o->ssl_certfile, openssl_reason());
    return STATUS_OK;
}

/** Client certificates, by the numbers of Python's ssl module. */
static enum status set_verification(SSL_CTX *context, const struct serve_options *o,
                                    struct error *err)
{
    static const int modes[] = {SSL_VERIFY_NONE, SSL_VERIFY_PEER,
                                SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT};
    if (o->ssl_cert_reqs > 0 && !o->ssl_ca_certs)
        return error_set_field(err, STATUS_INVALID, "--ssl-cert-reqs",
                               "--ssl-cert-reqs %d needs --ssl-ca-certs: which authorities sign "
                               "the clients' certificates",
                               o->ssl_cert_reqs);
    SSL_CTX_set_verify(context, modes[o->ssl_cert_reqs], NULL);
    if (!o->ssl_ca_certs)
        return STATUS_OK;
    TRY(check_file("--ssl-ca-certs", o->ssl_ca_certs, err));
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(o->ssl_ca_certs);
    if (!names || SSL_CTX_load_verify_locations(context, o->ssl_ca_certs, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return error_set_field(err, STATUS_INVALID, "--ssl-ca-certs",
                               "--ssl-ca-certs %s: no certificates in PEM form: %s",
                               o->ssl_ca_certs, openssl_reason());
    }
    SSL_CTX_set_client_CA_list(context, names); // takes them
    return STATUS_OK;
}

static enum status configure(SSL_CTX *context, const struct serve_options *o, struct error *err)
{
    static const unsigned char name[] = "vllm";
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_id_context(context, name, sizeof(name) - 1);
    TRY(load_certificate(context, o, err));
    TRY(set_verification(context, o, err));
    if (o->ssl_ciphers && SSL_CTX_set_cipher_list(context, o->ssl_ciphers) != 1)
        return error_set_field(err, STATUS_INVALID, "--ssl-ciphers",
                               "--ssl-ciphers %.200s: OpenSSL knows none of them", o->ssl_ciphers);
    return STATUS_OK;
}

enum status tls_create(struct tls **out, const struct serve_options *o, struct error *err)
{
    *out = NULL;
    if (!o->ssl_certfile && o->ssl_keyfile)
        return error_set_field(err, STATUS_INVALID, "--ssl-keyfile",
                               "--ssl-keyfile needs --ssl-certfile: the certificate of the key");
    if (!o->ssl_certfile && (o->ssl_ca_certs || o->ssl_cert_reqs > 0 || o->ssl_ciphers))
        return error_set_field(err, STATUS_INVALID, "--ssl-certfile",
                               "--ssl-ca-certs, --ssl-cert-reqs and --ssl-ciphers need "
                               "--ssl-certfile: without it nothing is encrypted");
    if (!o->ssl_certfile)
        return STATUS_OK;
    struct tls *tls = xcalloc(1, sizeof(*tls));
    tls->context = SSL_CTX_new(TLS_server_method());
    enum status status =
        tls->context ? configure(tls->context, o, err)
                     : error_set(err, STATUS_OUT_OF_MEMORY, "no TLS context: %s", openssl_reason());
    if (status != STATUS_OK) {
        tls_destroy(tls);
        return status;
    }
    *out = tls;
    return STATUS_OK;
}

void tls_destroy(struct tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    free(tls);
}

struct ssl_st *tls_session(struct tls *tls)
{
    return SSL_new(tls->context);
}
