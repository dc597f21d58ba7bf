/* The page of the admin port, out of web/ui; part of the program. Static bytes. */
#ifndef WEB_PAGE_H
#define WEB_PAGE_H

#include "service/base/bytes.h"

struct bytes page_html(void);
struct bytes page_css(void);
struct bytes page_js(void);
struct bytes page_network_html(void);
struct bytes page_network_css(void);
struct bytes page_network_js(void);

struct exchange;
/* Answers with one of them, under a policy that lets it load nothing from elsewhere. */
void say_file(struct exchange *x, struct bytes file, const char *type);

#endif
