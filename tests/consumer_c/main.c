/* SPDX-License-Identifier: Apache-2.0 */
#include <packstone/packstone.h>

#include <stdio.h>

int main(void) {
  packstone_manager_options options = {.size = sizeof options, .pages = 8, .page_size = 16};
  packstone_manager* manager = NULL;
  packstone_seq seq = 0;
  if (packstone_manager_create(&options, &manager) != PACKSTONE_OK) return 1;
  if (packstone_manager_open(manager, NULL, &seq) != PACKSTONE_OK) return 2;
  if (packstone_manager_append(manager, seq, 1000) != PACKSTONE_OUT_OF_PAGES) return 3;
  if (packstone_manager_append(manager, seq, 20) != PACKSTONE_OK) return 4;
  packstone_manager_destroy(manager);
  printf("consumer_c: ok, packstone %s\n", packstone_version());
  return 0;
}
