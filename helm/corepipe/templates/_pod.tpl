{{/* Environment, volumes and spread of the server's pods. */}}

{{- define "corepipe.env" -}}
env:
  - name: COREPIPE_CACHE
    value: /var/cache/corepipe
  {{- with .Values.apiKeys }}
  {{- if .existingSecret }}
  - name: COREPIPE_API_KEY
    valueFrom:
      secretKeyRef:
        name: {{ .existingSecret }}
        key: {{ .key }}
  {{- if $.Values.adminPort.enabled }}
  - name: COREPIPE_ADMIN_API_KEY
    valueFrom:
      secretKeyRef:
        name: {{ .existingSecret }}
        key: {{ .metricsKey | default .key }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- if .Values.fleet.enabled }}
  {{- include "corepipe.fleetEnv" . | nindent 2 }}
  {{- end }}
  {{- if .Values.kvEvents.enabled }}
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* A model that came with the image stays visible: of its directory nothing is mounted over. */}}
{{- define "corepipe.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: cache
  mountPath: /var/cache/corepipe/packed
  subPath: packed
{{- if not .Values.image.includesModel }}
- name: cache
  mountPath: /var/cache/corepipe/models
  subPath: models
{{- end }}
- name: cache
  mountPath: /var/cache/corepipe/huggingface
  subPath: huggingface
{{- if .Values.chatTemplate }}
- name: chat-template
  mountPath: /etc/corepipe
  readOnly: true
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: tls
  mountPath: /etc/corepipe-tls
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "corepipe.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ ternary "5Gi" "3Gi" .Values.fleet.enabled }}
{{- if .Values.fleet.enabled }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: 128Mi
{{- end }}
- name: cache
{{- with .Values.cache }}
{{- if or .persistent .existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .existingClaim | default (printf "%s-cache" (include "corepipe.fullname" $)) }}
{{- else }}
  emptyDir:
    sizeLimit: {{ .size }}
{{- end }}
{{- end }}
{{- if .Values.chatTemplate }}
- name: chat-template
  configMap:
    name: {{ include "corepipe.fullname" . }}-chat-template
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ .Values.tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Whether the cache is a claim that the pods of one node, or one pod, can mount. */}}
{{- define "corepipe.cacheOfOneNode" -}}
{{- with .Values.cache }}
{{- if and (or .persistent .existingClaim) (ne .accessMode "ReadWriteMany") }}true{{ end }}
{{- end }}
{{- end }}

{{- define "corepipe.spread" -}}
{{- if kindIs "invalid" .Values.topologySpreadConstraints }}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "corepipe.selectorLabels" $ | nindent 6 }}
{{- end }}
{{- else }}
{{- toYaml .Values.topologySpreadConstraints }}
{{- end }}
{{- end }}
